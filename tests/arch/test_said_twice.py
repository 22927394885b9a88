"""What two layers must say alike, because neither may import the other."""

from pydantic import TypeAdapter

from isolet.agent.policy import checks
from isolet.agent.workspace import disk, launch, mirrors, script, trees
from isolet.api import bounds, fields
from isolet.api import execution as api
from isolet.api import runner as api_runner
from isolet.api import sandbox as api_sandbox
from isolet.base import envnames, quantity
from isolet.plan import reasons
from isolet.wire import dispatch
from isolet.wire import execution as wire


def limits(model: type, name: str) -> dict[str, int]:
    """Bounds of a message's field as its JSON schema has them."""
    found = TypeAdapter(model).json_schema(by_alias=False)["properties"][name]
    return {k: v for k, v in found.items() if k in ("minimum", "maximum", "maxLength")}


def api_range(name: str) -> tuple[str, str]:
    """Lowest and highest value of a bound in the API."""
    marks = bounds.Maximum.model_fields[name].metadata
    found = next((mark for mark in marks if isinstance(mark, fields.QuantityRange)), None)
    if found is not None:
        return found.low, found.high
    own = limits(bounds.Maximum, name)
    return str(own["minimum"]), str(own["maximum"])


def test_the_reason_of_a_full_node() -> None:
    assert disk.NODE_STORAGE_FULL == launch.NODE_STORAGE_FULL == reasons.NODE_STORAGE_FULL


def test_what_went_wrong_with_a_tree() -> None:
    assert trees.NODE_STORAGE_FULL == reasons.NODE_STORAGE_FULL
    assert mirrors.UNAVAILABLE == reasons.REPOSITORY_UNAVAILABLE
    assert set(trees.REASONS.values()) <= {
        vars(reasons)[name] for name in vars(reasons) if name.isupper()
    }


def test_how_long_an_argument_may_be() -> None:
    assert script.MAX_STRING_BYTES == checks.MAX_ARGUMENT_BYTES == fields.MAX_ARGUMENT_BYTES
    assert script.MAX_TOTAL_BYTES == checks.MAX_TOTAL_BYTES


def test_how_long_an_environment_value_may_be() -> None:
    assert limits(wire.EnvVar, "value")["maxLength"] == envnames.MAX_VALUE_BYTES
    assert limits(wire.EnvVar, "name")["maxLength"] == envnames.MAX_NAME_LENGTH


def test_the_bounds_of_a_sandbox() -> None:
    """What the API allows is what an agent takes: more would be refused late, at the node."""
    for name in bounds.NAMES:
        field = {"cpu": "cpu_millis", "pids": "pids"}.get(name, f"{name}_bytes")
        at = limits(wire.Resources, field)
        read = quantity.to_milli_cpu if name == "cpu" else quantity.to_bytes
        low, high = api_range(name)
        assert (at["minimum"], at["maximum"]) == (read(low), read(high)), name


def test_the_longest_times() -> None:
    deadline = limits(wire.ExecutionSpec, "maximum_deadline_seconds")
    assert deadline["maximum"] == api_sandbox.MAX_SECONDS
    assert limits(wire.Workspace, "retain_seconds")["maximum"] == api_sandbox.MAX_SECONDS


def test_the_states_and_media() -> None:
    assert [s.value for s in wire.State] == [s.value for s in api.DesiredState]
    assert {m.value for m in wire.Medium} == {m.value for m in api_sandbox.Medium}


def test_the_runs_of_a_runner() -> None:
    assert {m.value for m in dispatch.Mode} == {m.value for m in api_runner.Mode}
    assert dispatch.RUN_ID_PATTERN == api_runner.RUN_ID_PATTERN
    assert dispatch.MAX_DOCUMENT_BYTES == api_runner.MAX_PAYLOAD_BYTES


def test_the_budgets_of_a_runner() -> None:
    assert dispatch.Budgets().model_dump(by_alias=True) == api_runner.Budgets().model_dump()
    for name in dispatch.Budgets.model_fields:
        assert limits(dispatch.Budgets, name) == limits(api_runner.Budgets, name), name
