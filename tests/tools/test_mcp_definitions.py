"""How tool definitions of MCP servers are read, and how fast."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from nousd.daemon.mcp.specs import SESSION_PREFIX
from nousd.errors import ConfigError, ToolArgumentsInvalid
from nousd.tools.mcp.content import result_of
from nousd.tools.mcp.definitions import OfferedTool, definitions_of, tool_name
from nousd.tools.mcp.spec import ServerSpec, expand_references
from nousd.tools.process.message_limits import BYTES_PER_SECOND, MESSAGES_PER_SECOND, Pace
from nousd.tools.registry import TOOL_NAME

SPEC = ServerSpec(name="s", command=("program",))
OBJECT: dict[str, Any] = {"type": "object"}


def hash_of(spec: ServerSpec = SPEC, description: str = "d", **schema: Any) -> str:
    (tool,) = definitions_of(spec, [OfferedTool("t", description, {**OBJECT, **schema})]).usable
    return tool.hash


@pytest.mark.parametrize("name", ["t", "get-sum", "a.b", "x" * 61])
def test_a_tool_name_begins_with_the_name_of_the_server_and_its_own(name: str) -> None:
    assert tool_name("s", name)[:64].startswith(f"mcp__s__{name}"[:55])
    assert TOOL_NAME.fullmatch(tool_name("s", name))


@pytest.mark.parametrize("name", ["x" * 57, "a b", "a/b", "é", "", "a\nb", "\ud800"])
def test_any_tool_name_becomes_one_that_models_accept(name: str) -> None:
    assert TOOL_NAME.fullmatch(tool_name("s" * 32, name))


SERVERS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,31}", fullmatch=True)


@given(SERVERS, SERVERS, st.text(max_size=80), st.text(max_size=80))
def test_no_tool_of_a_sessions_server_has_the_name_of_one_of_the_daemon(
    own: str, other: str, own_tool: str, other_tool: str
) -> None:
    spec = ServerSpec(name=own, prefix=SESSION_PREFIX)
    name = tool_name(spec.full_name, own_tool)
    assert TOOL_NAME.fullmatch(name)
    assert name != tool_name(other, other_tool)
    if own != other:
        assert name != tool_name(f"{SESSION_PREFIX}{other}", own_tool)


def test_similar_and_long_names_stay_distinct() -> None:
    names = ["a b", "a_b", "a/b", "x" * 100, "x" * 101]
    assert len({tool_name("s", name) for name in names}) == len(names)


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        (None, "its arguments are no object"),
        ([], "its arguments are no object"),
        ({"type": "string"}, "its arguments are no object"),
        ({"default": float("nan")}, "its schema cannot be written as JSON"),
    ],
)
def test_a_tool_with_an_invalid_schema_is_left_out_with_the_reason(schema: Any, fault: str) -> None:
    found = definitions_of(SPEC, [OfferedTool("good", "", OBJECT), OfferedTool("bad", "", schema)])
    assert [tool.name for tool in found.usable] == ["mcp__s__good"]
    assert found.left_out == (f"bad: {fault}",)


def test_of_two_tools_with_one_name_the_first_is_used() -> None:
    found = definitions_of(
        SPEC, [OfferedTool("t", "first", OBJECT), OfferedTool("t", "second", OBJECT)]
    )
    assert [tool.description for tool in found.usable] == ["first"]
    assert found.left_out == ("t: there are two of that name",)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": []},
        {"properties": {"a": True}},
        {"properties": {"a": {"type": 5, "minimum": "x", "maxLength": True, "enum": "no"}}},
        {"properties": {"a": {"type": [1]}}, "required": "a"},
        {"required": ["a", 5, None]},
        {"properties": {"a": {"pattern": "(a+)+$"}}},
    ],
)
def test_a_schema_that_makes_no_sense_does_not_restrict_arguments(schema: dict[str, Any]) -> None:
    (tool,) = definitions_of(SPEC, [OfferedTool("t", "", schema)]).usable
    assert tool.arguments.validate("t", {"a": "a" * 40 + "b"}) == {"a": "a" * 40 + "b"}
    assert tool.schema == {**schema, "type": "object"}


def test_arguments_are_validated_against_the_schema() -> None:
    schema = {"properties": {"n": {"type": "integer", "maximum": 5}}, "required": ["n"]}
    (tool,) = definitions_of(SPEC, [OfferedTool("t", "", schema)]).usable
    assert tool.arguments.validate("t", {"n": 5, "more": 1}) == {"n": 5, "more": 1}
    for wrong in ({}, {"n": 6}, {"n": "x"}):
        with pytest.raises(ToolArgumentsInvalid):
            tool.arguments.validate("t", wrong)


def test_secrets_are_redacted_in_tool_definitions() -> None:
    schema = {"title": "k3y", "properties": {"k3y": {"enum": ["a k3y"]}}}
    found = definitions_of(
        SPEC,
        [OfferedTool("first", "with k3y", schema), OfferedTool("k3y-one", "", {})],
        lambda text: text.replace("k3y", "[gone]"),
    )
    assert found.left_out == ("[gone]-one: its name holds a secret",)
    (tool,) = found.usable
    assert tool.description == "with [gone]"
    assert "k3y" not in str(tool.schema)


def test_the_hash_covers_the_definition_and_the_server() -> None:
    hashes = {
        hash_of(),
        hash_of(description="other"),
        hash_of(properties={"a": {}}),
        hash_of(ServerSpec(name="s", command=("other",))),
        hash_of(ServerSpec(name="s", url="http://other")),
    }
    assert len(hashes) == 5
    # Settings that do not affect the effect of a call do not change the hash.
    assert hash_of(ServerSpec(name="s", command=("program",), timeout_seconds=5)) == hash_of()
    assert hash_of(a=1, b=2) == hash_of(b=2, a=1)


def test_variables_are_filled_in_and_their_values_are_reported() -> None:
    known: list[str] = []
    given = {"A": "Bearer ${TOKEN}", "B": "plain", "C": "${TOKEN}${OTHER}"}
    environ = {"TOKEN": "t0ken", "OTHER": "0ther"}
    assert expand_references(given, environ, known.append) == {
        "A": "Bearer t0ken",
        "B": "plain",
        "C": "t0ken0ther",
    }
    assert set(known) == {"t0ken", "0ther"}
    with pytest.raises(ConfigError, match="NONE is not set"):
        expand_references({"A": "${NONE}"}, environ, known.append)


def test_the_repr_of_a_spec_contains_no_secret() -> None:
    spec = ServerSpec(name="s", env={"KEY": "s3cret"}, headers={"X": "s3cret"})
    assert "s3cret" not in repr(spec)


def test_a_block_that_is_not_text_is_described() -> None:
    blob = {"type": "resource", "resource": {"uri": "file:///a", "blob": "QUJD"}}
    result = result_of([{"type": "audio", "data": "QUI="}, blob], None, is_error=False)
    assert result.text.splitlines() == [
        "[audio, 2 bytes; it stands in the artifact of this result]",
        "[resource file:///a, 3 bytes; it stands in the artifact of this result]",
    ]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("per_second", [MESSAGES_PER_SECOND, 10 * MESSAGES_PER_SECOND])
async def test_traffic_above_the_limit_per_second_waits(
    autojump_clock: trio.testing.MockClock, per_second: int
) -> None:
    pace = Pace(per_second)
    began = trio.current_time()
    for _ in range(per_second):
        await pace.take(1)
    assert trio.current_time() - began < 0.01
    for _ in range(per_second * 2):
        await pace.take(1)
    assert trio.current_time() - began == pytest.approx(2, abs=0.01)
    await pace.take(BYTES_PER_SECOND * 3)
    assert trio.current_time() - began == pytest.approx(5, abs=0.01)
