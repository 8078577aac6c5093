"""The imports of nousd's modules, read from their source, and the cycles among them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

MODULES = sorted((ROOT / "nousd").rglob("*.py"))


@dataclass(frozen=True)
class Import:
    """``name`` is dotted and absolute; ``lazy`` if importing the module does not import it."""

    name: str
    line: int
    lazy: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str, module: str, *, is_package: bool = False) -> Iterator[Import]:
    """Yield every import of a module, anywhere in the file."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    yield from _imports(ast.parse(source), package, lazy=False)


def _imports(node: ast.AST, package: list[str], *, lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, lazy)
        elif isinstance(child, ast.ImportFrom):
            base = package[: len(package) - child.level + 1] if child.level else []
            start = ".".join([*base, *([child.module] if child.module else [])])
            for alias in child.names:
                yield Import(f"{start}.{alias.name}", child.lineno, lazy)
        yield from _imports(child, package, lazy=lazy or _runs_later(child))


def _runs_later(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


@cache
def imports_by_module() -> Mapping[str, tuple[Import, ...]]:
    """Return module -> its imports, for all of nousd."""
    return {
        module_name(path): tuple(
            imports_of(
                path.read_text(encoding="utf-8"),
                module_name(path),
                is_package=path.name == "__init__.py",
            )
        )
        for path in MODULES
    }


@cache
def graph() -> Mapping[str, frozenset[str]]:
    """Return module -> the modules of nousd that it imports, TYPE_CHECKING and functions included."""
    modules = frozenset(imports_by_module())
    return {
        module: frozenset(
            target
            for imported in imports
            if (target := _module_of(imported.name, modules)) is not None and target != module
        )
        for module, imports in imports_by_module().items()
    }


def _module_of(name: str, modules: frozenset[str]) -> str | None:
    """Return the module of nousd that ``name`` is or belongs to; None if there is none."""
    if name in modules:
        return name
    parent = name.rpartition(".")[0]
    return parent if parent in modules else None


def circles(edges: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for target in sorted(edges.get(module, ())):
            if target not in order:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], order[target])
        if lowest[module] == order[module]:
            start = stack.index(module)
            component = sorted(stack[start:])
            del stack[start:]
            if len(component) > 1:
                found.append(component)

    for module in sorted(edges):
        if module not in order:
            visit(module)
    return found
