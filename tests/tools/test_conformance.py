"""Properties that every tool has."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from nousd.errors import ToolArgumentsInvalid
from nousd.extensions.loader import load_extensions
from nousd.tools.builtin.catalog import BUILTIN_NAMES, builtin_tools
from nousd.tools.interface import Tool

TOOLS = (*builtin_tools(allow_exec=True), *load_extensions((), demo=True).tools)

MINIMAL: dict[str, dict[str, Any]] = {
    "read": {"path": "a.txt"},
    "write": {"path": "a.txt", "content": ""},
    "edit": {"path": "a.txt", "oldText": "a", "newText": "b"},
    "patch": {"patch": "--- a\n+++ b\n"},
    "ls": {},
    "find": {"pattern": "*"},
    "grep": {"pattern": "x"},
    "web_fetch": {"url": "https://example.com/"},
    "todo": {"todos": [{"content": "x"}]},
    "task": {"tasks": [{"prompt": "x"}]},
    "question": {"questions": [{"question": "x?"}]},
    "bash": {"command": "true"},
    "git": {"subcommand": "status"},
    "demo.echo": {"text": "hi"},
}

every_tool = pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)


def test_the_table_covers_every_tool() -> None:
    assert {tool.name for tool in TOOLS} == set(MINIMAL)
    assert set(MINIMAL) - {"demo.echo"} == BUILTIN_NAMES


def test_without_execution_there_is_no_bash_and_no_git() -> None:
    names = [tool.name for tool in builtin_tools(allow_exec=False)]
    assert names == [name for name in MINIMAL if name not in {"bash", "git", "demo.echo"}]


@every_tool
def test_the_schema_is_a_flat_object_schema_with_a_description_for_the_model(tool: Tool) -> None:
    jsonschema_rs.meta.validate(tool.parameters)
    assert tool.parameters["type"] == "object"
    assert "$ref" not in str(tool.parameters)
    assert "$defs" not in tool.parameters
    assert "anyOf" not in str(tool.parameters)
    assert tool.description
    assert "description" not in tool.parameters


@every_tool
def test_minimal_arguments_fit_the_schema_and_are_accepted(tool: Tool) -> None:
    jsonschema_rs.validate(tool.parameters, MINIMAL[tool.name])
    tool.validate(MINIMAL[tool.name])


@every_tool
def test_unknown_arguments_are_ignored(tool: Tool) -> None:
    assert tool.validate(MINIMAL[tool.name] | {"mood": 1}) == tool.validate(MINIMAL[tool.name])


@every_tool
def test_a_missing_required_argument_is_named(tool: Tool) -> None:
    for field in tool.parameters.get("required", ()):
        args = {name: value for name, value in MINIMAL[tool.name].items() if name != field}
        for incomplete in (args, args | {field: None}):
            with pytest.raises(ToolArgumentsInvalid) as caught:
                tool.validate(incomplete)
            assert str(caught.value) == f"validation_failed: {tool.name}.{field} is required"


@every_tool
def test_an_argument_of_the_wrong_type_is_named(tool: Tool) -> None:
    for field, rules in tool.parameters["properties"].items():
        wrong = "no" if rules.get("type") == "array" else ["no"]
        with pytest.raises(ToolArgumentsInvalid) as caught:
            tool.validate(MINIMAL[tool.name] | {field: wrong})
        assert str(caught.value).startswith(f"validation_failed: {tool.name}.{field} must be ")


@every_tool
def test_a_null_optional_argument_counts_as_absent(tool: Tool) -> None:
    optional = set(tool.parameters["properties"]) - set(tool.parameters.get("required", ()))
    nulls = dict.fromkeys(optional)
    assert tool.validate(nulls | MINIMAL[tool.name]) == tool.validate(MINIMAL[tool.name])


@every_tool
def test_arguments_that_are_not_an_object_are_refused(tool: Tool) -> None:
    with pytest.raises(ToolArgumentsInvalid, match="takes an object of arguments"):
        tool.validate([])  # type: ignore[arg-type]


@every_tool
def test_text_that_is_not_valid_unicode_is_refused(tool: Tool) -> None:
    field, value = next(iter(MINIMAL[tool.name].items()), ("path", "."))
    bad = "\ud800" if isinstance(value, str) else [dict.fromkeys(value[0], "\ud800")]
    with pytest.raises(ToolArgumentsInvalid, match=f"{field} must be valid Unicode"):
        tool.validate(MINIMAL[tool.name] | {field: bad})
