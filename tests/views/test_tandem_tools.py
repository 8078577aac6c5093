"""The tools that the contract's names refer to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nousd.tools.builtin.catalog import BUILTIN_NAMES
from nousd.views.tandem import tools
from nousd.views.tandem.tools import is_same_tool, list_allowed_tools, list_ruled_tools, tools_of


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("read", ("read",)),
        ("Read", ("Read",)),
        ("glob", ("find",)),
        (" Run-Command ", ("bash",)),
        ("webfetch_html", ("web_fetch",)),
        ("websearch", ()),
        ("mcp.github.issues_list", ("mcp__github__issues_list",)),
        ("mcp.github.v2.list", ("mcp__github__v2.list",)),
        ("mcp.github.*", ("mcp__github__*",)),
        ("mcp__github__list", ("mcp__github__list",)),
        ("nothing of anybodys", ("nothing of anybodys",)),
        ("*", ("*",)),
        ("mcp*", ("mcp*",)),
        ("web*", ("web*",)),
        ("webfetch*", ("webfetch*", "web_fetch")),
        ("todo*", ("todo*",)),
        ("*search", ("*search", "grep")),
    ],
)
def test_a_name_of_the_contract_maps_to_these_tools(name: str, ours: tuple[str, ...]) -> None:
    assert tools_of(name) == ours


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("bash", ("bash",)),
        ("Bash", ("Bash", "bash")),
        ("web-fetch", ("web-fetch", "web_fetch")),
        ("Shell", ("bash",)),
        ("websearch", ()),
        ("mcp.GitHub.List", ("mcp__GitHub__List",)),
        ("*", ("*",)),
    ],
)
def test_a_rule_covers_the_name_as_written_and_the_tools_it_maps_to(
    name: str, ours: tuple[str, ...]
) -> None:
    assert list_ruled_tools(name) == ours


def test_every_mapped_tool_exists_and_no_builtin_name_is_mapped() -> None:
    meant = {ours for several in tools._EQUIVALENT_TOOLS.values() for ours in several}
    assert meant <= BUILTIN_NAMES
    assert not tools._EQUIVALENT_TOOLS.keys() & BUILTIN_NAMES


def test_the_contract_lists_exactly_the_mapped_names() -> None:
    text = (Path(__file__).parents[2] / "protocol" / "http.md").read_text()
    section = text.partition("### Names of tools")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", section, re.MULTILINE)
    listed = {
        name: () if ours == "nothing" else (ours.strip("`"),)
        for names, ours in rows
        for name in re.findall(r"`([^`]*)`", names)
    }
    assert listed.pop("mcp.SERVER.TOOL") == tools_of("mcp.SERVER.TOOL")
    assert listed == tools._EQUIVALENT_TOOLS


def test_a_list_allows_each_tool_once_and_expands_patterns_to_existing_tools() -> None:
    there = ("read", "mcp__github__list", "mcp__github__close", "find")
    assert list_allowed_tools(["read", "glob", "list", "ls", "websearch"]) == ("read", "find", "ls")
    assert list_allowed_tools(["mcp.github.*", "read"], there) == (
        "mcp__github__list",
        "mcp__github__close",
        "read",
    )
    assert list_allowed_tools(["*"], there) == there
    assert list_allowed_tools(["websearch"]) == ()


def test_two_spellings_of_a_tool_name_are_the_same_tool() -> None:
    assert is_same_tool("Todo-Write", "todo_write")
    assert not is_same_tool("read", "write")
