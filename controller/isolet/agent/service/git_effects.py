"""The actions about a Git tree, performed; `effects` has all others."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from isolet.agent.service.context import Context
from isolet.agent.service.imports import Imports
from isolet.agent.steps import AgentStep
from isolet.base import steps
from isolet.plan import git_model, sandbox_model
from isolet.plan.sandbox_model import SandboxRecord

Performer = Callable[[SandboxRecord, Any], Awaitable[SandboxRecord | None]]


class GitEffects:
    """Begins readings, and records what they found."""

    def __init__(self, context: Context, imports: Imports) -> None:
        self._context = context
        self._imports = imports

    def performers(self) -> Mapping[type[sandbox_model.Action], Performer]:
        """The actions that are performed here."""
        return {
            git_model.ResolveCommit: self._resolve,
            git_model.RecordCommit: self._record_commit,
            git_model.ReadTree: self._read,
            git_model.RecordTree: self._record_tree,
        }

    async def _resolve(self, record: SandboxRecord, _: object) -> SandboxRecord:
        self._imports.resolve(record)
        return record

    async def _record_commit(
        self, record: SandboxRecord, action: git_model.RecordCommit
    ) -> SandboxRecord:
        assert record.git is not None
        part = replace(record.git, commit=action.commit)
        stored = await self._context.store.update(record.with_(git=part))
        steps.reach(AgentStep.COMMIT_AFTER)
        return stored

    async def _read(self, record: SandboxRecord, _: object) -> SandboxRecord:
        self._imports.read(record)
        return record

    async def _record_tree(
        self, record: SandboxRecord, action: git_model.RecordTree
    ) -> SandboxRecord:
        assert record.git is not None
        part = replace(record.git, tree=action.tree)
        stored = await self._context.store.update(record.with_(git=part))
        steps.reach(AgentStep.TREE_RECORDED)
        return stored
