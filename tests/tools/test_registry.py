from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.errors import ConfigError
from nousd.tools.builtin.catalog import builtin_tools
from nousd.tools.interface import Tool
from nousd.tools.registry import ToolRegistry

READ = builtin_tools(allow_exec=False)[0]


def with_name(name: str) -> Tool:
    tool: Tool = msgspec.structs.replace(READ, name=name)  # type: ignore[type-var]
    return tool


def test_tools_are_found_by_name_in_the_order_of_registration() -> None:
    registry = ToolRegistry(builtin_tools(allow_exec=True))
    assert registry.get("read") is READ
    assert registry.get("fly") is None
    assert list(registry) == [tool.name for tool in builtin_tools(allow_exec=True)]
    assert [tool.name for tool in registry.values()] == list(registry)
    assert "bash" in registry
    assert "fly" not in registry
    assert len(registry) == len(builtin_tools(allow_exec=True))


def test_a_second_tool_with_the_same_name_is_refused() -> None:
    registry = ToolRegistry([READ])
    with pytest.raises(ConfigError, match="tool read of builtin exists already, from builtin"):
        registry.register(READ)


@pytest.mark.parametrize("name", ["", "1st", "a b", "x" * 65, "naïve", "a\n"])
def test_an_unusable_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="must match"):
        ToolRegistry([with_name(name)])


@pytest.mark.parametrize("name", ["a", "demo.echo", "mcp__server-1", "x" * 64])
def test_names_in_the_style_of_model_apis_and_extensions_are_accepted(name: str) -> None:
    assert list(ToolRegistry([with_name(name)])) == [name]


def of_source(name: str, source: str) -> Tool:
    tool: Tool = msgspec.structs.replace(READ, name=name, source=source)  # type: ignore[type-var]
    return tool


def test_the_tools_of_a_source_are_replaced_together_and_others_keep_their_order() -> None:
    registry = ToolRegistry([READ, of_source("z", "extension")])
    before = registry.version
    registry.replace_all("server", [of_source("d", "server"), of_source("c", "server")])
    registry.replace_all("another", [of_source("e", "another")])
    assert list(registry) == ["read", "z", "e", "c", "d"]
    assert registry.version > before
    registry.replace_all("another", ())
    registry.replace_all("another", [of_source("f", "another")])
    assert list(registry) == ["read", "z", "f", "c", "d"]
    registry.replace_all("server", ())
    assert list(registry) == ["read", "z", "f"]


def test_late_tools_are_loaded_once_and_come_first() -> None:
    loads = []

    def late() -> list[Tool]:
        loads.append(True)
        return [READ]

    registry = ToolRegistry([of_source("z", "extension")], late=late)
    assert loads == []
    assert list(registry) == ["read", "z"]
    registry.replace_all("server", [of_source("a", "server")])
    assert (list(registry), loads) == (["read", "z", "a"], [True])


def test_tools_of_a_source_come_after_late_tools_that_are_not_loaded_yet() -> None:
    registry = ToolRegistry(late=lambda: [READ])
    registry.replace_all("server", [of_source("a", "server")])
    assert list(registry) == ["read", "a"]
    registry = ToolRegistry(late=lambda: [READ])
    with pytest.raises(ConfigError, match="tool read of server exists already, from builtin"):
        registry.replace_all("server", [of_source("read", "server")])


def test_a_source_with_a_duplicate_name_registers_no_tools() -> None:
    registry = ToolRegistry([READ])
    registry.replace_all("server", [of_source("a", "server")])
    with pytest.raises(ConfigError, match="tool read of server exists already, from builtin"):
        registry.replace_all("server", [of_source("b", "server"), of_source("read", "server")])
    assert list(registry) == ["read"]


OWNERS = st.sampled_from(["", "one", "two"])
SOURCES = st.sampled_from(["mcp:a", "mcp:b"])
TOOLS = st.sets(st.sampled_from("xyz"))


@given(st.lists(st.tuples(OWNERS, SOURCES, TOOLS)))
def test_an_owner_finds_everybodys_tools_and_its_own_and_nobody_elses(
    steps: list[tuple[str, str, set[str]]],
) -> None:
    """The tools without an owner are everybody's."""
    registry, expected = ToolRegistry([READ]), dict[tuple[str, str], set[str]]()
    for owner, source, letters in steps:
        own = registry.ensure_registry(owner) if owner else registry
        names = {f"{owner}_{source[-1]}_{letter}".lstrip("_") for letter in letters}
        own.replace_all(source, [of_source(name, source) for name in names])
        expected[owner, source] = names
    for owner in ("one", "two", "three"):
        found = registry.of(owner)
        own_names = set[str]().union(*(expected.get((owner, s), ()) for s in ("mcp:a", "mcp:b")))
        others = set(registry)
        assert set(registry.own(owner)) == own_names
        assert set(found) == own_names | others
        assert len(found) == len(list(found)) == len(own_names) + len(others)
        assert list(found)[: len(others)] == list(registry)
        assert all(found[name].name == name for name in found)
        registry.disown(owner)
        assert set(registry.of(owner)) == others
