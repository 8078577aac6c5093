"""nousd uses no private name of a dependency, since those may change without notice."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Iterator

import pytest

from tests.harness.import_graph import MODULES, module_name

PROGRAMS = "_main"
"""The suffix of modules that are programs, which run when they are imported."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_foreign(module: str) -> bool:
    """Return True if a module belongs to an installed dependency."""
    top = module.partition(".")[0]
    return top not in {"nousd", "tests", ""} and top not in sys.stdlib_module_names


def imported_names(tree: ast.AST) -> Iterator[tuple[int, str, list[str]]]:
    """Yield (line, local name, dotted parts) of each name that is imported from a foreign module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if is_foreign(alias.name):
                    local = (alias.asname or alias.name).partition(".")[0]
                    yield node.lineno, local, alias.name.split(".")
        elif isinstance(node, ast.ImportFrom) and is_foreign(node.module or ""):
            for alias in node.names:
                parts = [*(node.module or "").split("."), alias.name]
                yield node.lineno, alias.asname or alias.name, parts


def private_names(source: str) -> Iterator[str]:
    """Yield each private name of a foreign module that is imported, or read as an attribute."""
    tree = ast.parse(source)
    imported = list(imported_names(tree))
    for line, _, parts in imported:
        if any(map(is_private, parts)):
            yield f"{line}: {'.'.join(parts)}"
    foreign = {local for _, local, _ in imported}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and root_of(node) in foreign:
            yield f"{node.lineno}: {ast.unparse(node)}"


def root_of(node: ast.expr) -> str | None:
    """Return the name that a chain of attributes and calls begins with."""
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) else None


def overridden(cls: type) -> list[str]:
    """Return the private names of foreign bases that the methods of a class define or use."""
    bases = [base for base in cls.__mro__[1:] if is_foreign(base.__module__)]
    private = {name for base in bases for name in vars(base) if is_private(name)}
    own = {name: value for name, value in vars(cls).items() if inspect.isfunction(value)}
    written = [value for value in own.values() if value.__module__ == cls.__module__]
    used = {name for value in written for name in value.__code__.co_names}
    return sorted(private & (used | {value.__name__ for value in written}))


def test_no_private_name_of_a_dependency_is_imported_or_read() -> None:
    assert [
        f"{module_name(path)}:{found}"
        for path in MODULES
        for found in private_names(path.read_text(encoding="utf-8"))
    ] == []


def test_no_class_overrides_or_uses_private_methods_of_a_foreign_base() -> None:
    found = []
    for path in MODULES:
        name = module_name(path)
        if name.endswith(PROGRAMS) or name == "nousd.__main__":
            continue
        module = importlib.import_module(name)
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == name:
                found += [f"{name}.{cls.__name__}: {each}" for each in overridden(cls)]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "from trio._core import thing",
        "from h11 import _state",
        "import h11._state",
        "import trio\ntrio._core.run()",
        "from h11 import Connection\nConnection(1)._reader",
        "import h11 as wire\nwire._x",
    ],
)
def test_a_private_name_is_found(source: str) -> None:
    assert list(private_names(source))


@pytest.mark.parametrize(
    "source",
    [
        "from nousd.wire import _x",
        "import os\nos._exit(1)",
        "import trio\nself._stream",
        "import h11",
    ],
)
def test_own_and_public_names_are_not_reported(source: str) -> None:
    assert list(private_names(source)) == []


def test_an_overridden_or_called_private_method_is_found() -> None:
    class Base:
        def _step(self) -> None: ...

    Base.__module__ = "h11"

    class Overrides(Base):
        def _step(self) -> None: ...

    class Calls(Base):
        def run(self) -> None:
            self._step()

    class Neither(Base):
        def _other(self) -> None: ...

    assert [overridden(cls) for cls in (Overrides, Calls, Neither)] == [["_step"], ["_step"], []]
