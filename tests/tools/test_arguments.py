from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from nousd.errors import ToolArgumentsInvalid
from nousd.tools.arguments import Arguments, struct_arguments
from nousd.tools.builtin.catalog import builtin_tools
from nousd.tools.interface import Tool

TOOLS: dict[str, Tool] = {tool.name: tool for tool in builtin_tools(allow_exec=True)}


def fields(tool: str, args: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(TOOLS[tool].validate(args))
    return found


def fault(tool: str, args: dict[str, Any]) -> str:
    with pytest.raises(ToolArgumentsInvalid) as caught:
        TOOLS[tool].validate(args)
    return str(caught.value)


@pytest.mark.parametrize("alias", ["file_path", "filePath", "filepath", "file", "filename"])
@pytest.mark.parametrize("tool", ["read", "write", "edit", "ls", "find", "grep"])
def test_the_path_argument_has_aliases(tool: str, alias: str) -> None:
    args = {"content": "", "oldText": "a", "newText": "b", "pattern": "x"}
    assert fields(tool, args | {alias: "p"})["path"] == "p"


@pytest.mark.parametrize(
    ("tool", "alias", "name", "value"),
    [
        ("edit", "old_text", "oldText", "x"),
        ("edit", "old_string", "oldText", "x"),
        ("edit", "oldString", "oldText", "x"),
        ("edit", "new_text", "newText", "x"),
        ("edit", "new_string", "newText", "x"),
        ("edit", "newString", "newText", "x"),
        ("edit", "all", "replaceAll", True),
        ("edit", "replace_all", "replaceAll", True),
        ("bash", "cmd", "command", "x"),
        ("ls", "directory", "path", "x"),
        ("find", "dir", "path", "x"),
        ("grep", "directory", "path", "x"),
        ("grep", "ignore_case", "ignoreCase", True),
    ],
)
def test_other_arguments_have_aliases(tool: str, alias: str, name: str, value: object) -> None:
    needed = {
        "edit": {"path": "p", "oldText": "a", "newText": "b"},
        "bash": {"command": "c"},
        "find": {"pattern": "*"},
        "grep": {"pattern": "x"},
        "ls": {},
    }[tool]
    args = {key: given for key, given in needed.items() if key != name}
    assert fields(tool, args | {alias: value})[name] == value


def test_the_proper_name_wins_over_an_alias() -> None:
    assert fields("read", {"file_path": "alias", "path": "proper"})["path"] == "proper"
    assert fields("read", {"path": "proper", "file_path": "alias"})["path"] == "proper"


@pytest.mark.parametrize(
    ("value", "number"), [(5, 5), (5.0, 5), ("5", 5), (" 5 ", 5), ("+5", 5), (None, 1)]
)
def test_an_integer_is_accepted_in_several_spellings(value: object, number: int) -> None:
    assert fields("read", {"path": "p", "offset": value})["offset"] == number


@pytest.mark.parametrize("value", [5.5, "five", "5.5", "", True, [5], {}, "٥"])
def test_a_value_that_is_not_an_integer_is_refused(value: object) -> None:
    text = fault("read", {"path": "p", "offset": value})
    assert text == "validation_failed: read.offset must be an integer"


@pytest.mark.parametrize(("value", "truth"), [("true", True), ("False", False), (True, True)])
def test_a_boolean_is_accepted_as_text(value: object, truth: object) -> None:
    assert fields("grep", {"pattern": "x", "literal": value})["literal"] is truth


@pytest.mark.parametrize(
    ("tool", "args", "text"),
    [
        ("bash", {}, "bash.command is required"),
        ("bash", {"command": ""}, "bash.command is required"),
        ("bash", {"command": "x", "timeout": 0}, "bash.timeout must be at least 1"),
        ("bash", {"command": "x", "timeout": 3601}, "bash.timeout must be at most 3600"),
        ("read", {"path": "p", "offset": 0}, "read.offset must be at least 1"),
        ("read", {"path": "p", "limit": "-3"}, "read.limit must be at least 1"),
        ("read", {"path": "p", "limit": 10**30}, "read.limit must be at most 2147483647"),
        ("grep", {"pattern": 5}, "grep.pattern must be a string"),
        ("grep", {"pattern": "x" * 2049}, "grep.pattern must have at most 2048 characters"),
        ("grep", {"pattern": "x", "literal": 1}, "grep.literal must be true or false"),
    ],
)
def test_an_invalid_argument_is_refused_with_its_field_and_limit(
    tool: str, args: dict[str, Any], text: str
) -> None:
    assert fault(tool, args) == f"validation_failed: {text}"


class Inner(msgspec.Struct):
    level: Annotated[int, Meta(ge=1)]


class Outer(msgspec.Struct):
    items: list[Inner]
    extra: Inner | None = None


def test_nested_structs_are_inlined_in_the_schema_and_validated() -> None:
    arguments = struct_arguments(Outer)
    inner = {
        "title": "Inner",
        "type": "object",
        "properties": {"level": {"type": "integer", "minimum": 1}},
        "required": ["level"],
    }
    assert arguments.schema["properties"] == {
        "items": {"type": "array", "items": inner},
        "extra": inner,
    }
    assert arguments.validate("t", {"items": [{"level": 2}]}) == Outer(items=[Inner(level=2)])
    with pytest.raises(ToolArgumentsInvalid, match=r"^validation_failed: t: .*\$\.items"):
        arguments.validate("t", {"items": [{"level": 0}]})


class Endless(msgspec.Struct):
    below: list[Endless]


def test_a_recursive_struct_is_refused() -> None:
    with pytest.raises(ValueError, match="Endless refers to itself"):
        struct_arguments(Endless)


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "mode": {"type": "string", "enum": ["fast", "slow"]},
        "tag": {"type": ["string", "null"]},
        "ratio": {"type": "number", "minimum": 0},
    },
    "required": ["mode"],
}


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({}, "t.mode is required"),
        ({"mode": "odd"}, "t.mode must be one of fast, slow"),
        ({"mode": "fast", "tag": 1}, "t.tag must be a string or null"),
        ({"mode": "fast", "ratio": -0.5}, "t.ratio must be at least 0"),
        ({"mode": "fast", "ratio": True}, "t.ratio must be a number"),
    ],
)
def test_the_top_level_of_a_plain_schema_is_validated(args: dict[str, Any], text: str) -> None:
    with pytest.raises(ToolArgumentsInvalid) as caught:
        Arguments(schema=SCHEMA).validate("t", args)
    assert str(caught.value) == f"validation_failed: {text}"


def test_a_plain_schema_keeps_all_given_arguments() -> None:
    args = {"mode": "slow", "tag": None, "more": [1]}
    assert Arguments(schema=SCHEMA).validate("t", args) == args
