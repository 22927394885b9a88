"""Gathers what one pass over an object needs into one frozen value. Reads, and never decides.

A read that failed is Unknown, never Absent. Secrets and ConfigMaps are read when an object that has
not been handed to its agent names them, and are kept nowhere.
"""

import asyncio
import base64
import binascii
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pydantic

from isolet.api import executionclass
from isolet.base import errors, log
from isolet.base.clock import Clock
from isolet.operator.cache import ObjectCache
from isolet.operator.index import Index, is_finished
from isolet.operator.kube import (
    CHECKPOINTS,
    CLASSES,
    CONFIG_MAPS,
    EXECUTIONS,
    NAMESPACES,
    NODES,
    SECRETS,
    Cluster,
    Key,
    Kind,
    Object,
)
from isolet.operator.nodes import Nodes
from isolet.plan import binding, model, objects, restoring, values
from isolet.plan.model import Absent, Fact, Host, Input, InputRef, Known, Unknown
from isolet.wire.execution import Step

_log = log.get("operator.observe")

_KINDS = {"Secret": SECRETS, "ConfigMap": CONFIG_MAPS}

Classes = Fact[tuple[executionclass.ExecutionClass, ...]]
Labels = Fact[Mapping[str, str]]

_BEFORE_ITS_START = (Step.RECORDED, Step.DISPATCHED)

_NOT_NEEDED = Unknown("not needed any more")


@dataclass
class Namespaces:
    """Labels of namespaces, read when an object there is to be bound.

    An answer serves passes that begin within `keep` seconds, so that a burst in one namespace costs
    one read.
    """

    cluster: Cluster
    clock: Clock
    keep: float = 2.0
    _read: dict[str, tuple[float, asyncio.Task[Labels]]] = field(default_factory=dict)

    async def labels(self, name: str) -> Labels:
        """The labels of one namespace."""
        now = self.clock.monotonic()
        known = self._read.get(name)
        if known is None or now - known[0] >= self.keep:
            self._read = {k: v for k, v in self._read.items() if now - v[0] < self.keep}
            known = now, asyncio.create_task(self._get(name))
            self._read[name] = known
        return await asyncio.shield(known[1])

    async def _get(self, name: str) -> Labels:
        try:
            obj = await self.cluster.get(NAMESPACES, "", name)
        except errors.NotFound:
            return Absent()
        except errors.IsoletError as error:
            return Unknown(error.message)
        return Known(dict(obj["metadata"].get("labels") or {}))


@dataclass
class ClassShelf:
    """All ExecutionClasses, parsed once for each change of any of them."""

    cache: ObjectCache
    _parsed: tuple[executionclass.ExecutionClass, ...] | None = None

    def changed(self) -> None:
        """Some class is new, different or gone."""
        self._parsed = None

    def all(self) -> Classes:
        """Every class; Unknown until all were listed."""
        if not self.cache.complete(CLASSES):
            return Unknown("the classes were not listed yet")
        if self._parsed is None:
            parsed = (_class(obj) for obj in self.cache.all(CLASSES))
            self._parsed = tuple(item for item in parsed if item is not None)
        return Known(self._parsed)


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a pass has read, and the object for which it did."""

    obj: Object
    facts: objects.Work
    labels: Labels = _NOT_NEEDED
    inputs: Mapping[InputRef, Fact[Input]] = field(default_factory=dict, repr=False)


@dataclass
class Observer:
    """Makes `model.Observed` values."""

    cluster: Cluster
    cache: ObjectCache
    index: Index
    nodes: Nodes
    classes: ClassShelf
    namespaces: Namespaces
    clock: Clock
    installation: str
    leader_since: datetime
    leader_boottime: float

    def lead(self) -> None:
        """This operator leads from now on."""
        self.leader_since, self.leader_boottime = self.clock.now(), self.clock.boottime()

    def _reckoned(self) -> datetime:
        passed = self.clock.boottime() - self.leader_boottime
        return self.leader_since + timedelta(seconds=passed)

    async def read(self, kind: Kind, obj: Object) -> Fetched:
        """What has to be fetched for this pass. The only part that waits.

        Raises:
            IsoletError: it cannot be told now whether something that is not known is there.
        """
        facts = objects.read(kind.kind, obj)
        if facts.deleting or not is_finished(obj):
            await self._look_for(NODES, "", facts.node_name)
        if is_finished(obj) or facts.deleting:
            return Fetched(obj, facts)
        if facts.node_name is not None:
            await self._look_for(EXECUTIONS, facts.namespace, facts.host)
        refs = values.inputs_of(facts.spec) if self._needs_inputs(facts) else ()
        labels, inputs = await asyncio.gather(self._labels(facts), self._inputs(facts, refs))
        return Fetched(obj, facts, labels, inputs)

    async def read_for_checkpoint(self, obj: Object) -> None:
        """The same for a pass over a Checkpoint. Raises IsoletError."""
        facts = objects.read_checkpoint(obj)
        if facts.deleting or not facts.over:
            await self._look_for(NODES, "", facts.node_name)
        if facts.node_name is None and not facts.over:
            await self._look_for(EXECUTIONS, facts.namespace, facts.source)

    async def _look_for(self, kind: Kind, namespace: str, name: str | None) -> None:
        """Ask for what is not known before it is taken for gone, and something ended for that.

        Each kind has a watch of its own: one that is just connecting anew may be behind the others
        by half a minute.
        """
        key = Key(kind.kind, namespace, name or "")
        if not name or self.cache.get(key) is not None or not self.cache.complete(kind):
            return
        with contextlib.suppress(errors.NotFound):
            self.cache.put(kind, await self.cluster.get(kind, namespace, name))

    def observe(
        self,
        kind: Kind,
        obj: Object,
        fetched: Fetched,
        failure: model.Failure | None,
        granted_at: datetime | None = None,
    ) -> model.Observed:
        """Everything as of now.

        Does not wait, so that no other pass comes between it and what its plan promises.
        """
        facts = fetched.facts if fetched.obj is obj else objects.read(kind.kind, obj)
        checkpoint = self._checkpoint(facts)
        return model.Observed(
            object=facts,
            host=self._host(facts, facts.host),
            checkpoint=checkpoint,
            granted_at=granted_at,
            namespace_labels=fetched.labels,
            classes=self.classes.all(),
            inputs=fetched.inputs,
            nodes=self.nodes.facts(
                facts.uid,
                placing=not (facts.node_name or facts.host),
                checkpoint=_checkpoint_uid(facts, checkpoint),
            ),
            nodes_complete=self.cache.complete(NODES) and self.nodes.readable,
            leader_since=self.leader_since,
            installation=self.installation,
            failure=failure,
            now=self.clock.now(),
            reckoned=self._reckoned(),
        )

    def observe_checkpoint(
        self, obj: Object, failure: model.Failure | None
    ) -> model.CheckpointPass:
        """Everything that a pass over a Checkpoint knows, as of now."""
        facts = objects.read_checkpoint(obj)
        return model.CheckpointPass(
            object=facts,
            source=self._host(facts, facts.source or None),
            restoring=self._restoring(facts),
            nodes=self.nodes.facts("", checkpoint=facts.uid),
            nodes_complete=self.cache.complete(NODES) and self.nodes.readable,
            leader_since=self.leader_since,
            installation=self.installation,
            failure=failure,
            now=self.clock.now(),
            reckoned=self._reckoned(),
        )

    def _restoring(self, facts: objects.CheckpointFacts) -> tuple[str, ...]:
        """Executions that start from it, but for those whose agents say that they have begun."""
        key = Key(CHECKPOINTS.kind, facts.namespace, facts.metadata.name)
        return tuple(
            found.name for found in self.index.restoring(key, facts.uid) if not self._began(found)
        )

    def _began(self, key: Key) -> bool:
        bound = self.index.bound.get(key)
        link = self.nodes.link(bound.node) if bound is not None else None
        record = link.record(bound.uid) if link is not None and bound is not None else None
        return isinstance(record, Known) and record.value.step not in _BEFORE_ITS_START

    def _checkpoint(self, facts: objects.Work) -> Fact[objects.CheckpointFacts]:
        """The Checkpoint that an Execution starts from."""
        name = facts.sought.restore_from if facts.sought is not None else None
        if name is None:
            return _NOT_NEEDED
        obj = self.cache.get(Key(CHECKPOINTS.kind, facts.namespace, name))
        if obj is None:
            complete = self.cache.complete(CHECKPOINTS)
            return Absent() if complete else Unknown("the Checkpoints were not listed yet")
        return Known(objects.read_checkpoint(obj))

    def _host(self, facts: objects.Facts, name: str | None) -> Fact[Host]:
        """The Execution that a Process or a Checkpoint names."""
        if name is None:
            return _NOT_NEEDED
        obj = self.cache.get(Key(EXECUTIONS.kind, facts.namespace, name))
        if obj is None:
            complete = self.cache.complete(EXECUTIONS)
            return Absent() if complete else Unknown("the Executions were not listed yet")
        found = objects.read_execution(obj)
        link = self.nodes.link(found.node_name) if found.node_name else None
        return Known(Host(object=found, record=link.record(found.uid) if link else Unknown()))

    def _needs_inputs(self, facts: objects.Work) -> bool:
        """Once an agent has the object, its values are not needed again, unless it lost them."""
        if facts.node_name is None:
            return True
        link = self.nodes.link(facts.node_name)
        return link is None or binding.needs_values(link.record(facts.uid))

    async def _labels(self, facts: objects.Work) -> Labels:
        if facts.node_name is not None:
            return _NOT_NEEDED
        return await self.namespaces.labels(facts.metadata.namespace or "")

    async def _inputs(
        self, facts: objects.Work, refs: tuple[InputRef, ...]
    ) -> dict[InputRef, Fact[Input]]:
        namespace = facts.metadata.namespace or ""
        values = await asyncio.gather(*(self._input(namespace, ref) for ref in refs))
        return dict(zip(refs, values, strict=True))

    async def _input(self, namespace: str, ref: InputRef) -> Fact[Input]:
        try:
            obj = await self.cluster.get(_KINDS[ref.kind], namespace, ref.name)
        except errors.NotFound:
            return Absent()
        except errors.IsoletError as error:
            # The message names the object and the cause, never a value.
            return Unknown(error.message)
        return Known(read_input(ref, obj))


def _checkpoint_uid(facts: objects.Work, found: Fact[objects.CheckpointFacts]) -> str:
    """Which Checkpoint it is about: the one that was pinned, else the one of that name now."""
    pinned = restoring.restored(binding.read(facts))
    if pinned is not None:
        return pinned.uid
    return found.value.uid if isinstance(found, Known) else ""


def read_input(ref: InputRef, obj: Object) -> Input:
    """The values of a Secret or ConfigMap."""
    data: dict[str, bytes] = {}
    plain = obj.get("data") or {}
    if ref.kind == "Secret":
        encoded = plain
    else:
        encoded = obj.get("binaryData") or {}
        data.update({key: value.encode() for key, value in plain.items()})
    for key, value in encoded.items():
        try:
            data[key] = base64.b64decode(value or "", validate=True)
        except binascii.Error:
            continue  # the API server refuses it; to a plan the key is missing
    metadata = obj["metadata"]
    return Input(uid=metadata["uid"], resource_version=metadata["resourceVersion"], data=data)


def _class(obj: Object) -> executionclass.ExecutionClass | None:
    try:
        return executionclass.ExecutionClass.model_validate(obj)
    except pydantic.ValidationError:
        _log.warning(
            "an ExecutionClass that this version cannot read",
            extra={"class": obj["metadata"]["name"]},
        )
        return None
