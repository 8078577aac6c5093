"""Small faults that can be built into a function, and a draw among them by a seed.

A fault replaces one expression by another or leaves out one statement. Only bodies of functions have
them: what runs at import would be reached by every test.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

AREAS: Final[dict[str, tuple[str, ...]]] = {
    "machine": ("nousd/machine",),
    "store": ("nousd/store",),
    "gate": ("nousd/runtimes/calls", "nousd/daemon/policy"),
    "feed": ("nousd/daemon/eventlog", "nousd/daemon/transport", "nousd/event_window.py"),
    "framing": ("nousd/wire/codec", "nousd/net"),
    "providers": ("nousd/providers",),
    "bridge": ("nousd/bridge",),
}

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}
_LEFT_OUT: Final = (ast.Raise, ast.AugAssign, ast.Continue, ast.Break, ast.Delete)


class Fault(NamedTuple):
    """A fault.

    Args:
        area: a key of ``AREAS``.
        path: relative to the project.
        position: which of the file's possible faults, from 0 in the order of ``possible``.
        line: of the original.
        what: says what is changed, for people.
    """

    area: str
    path: str
    position: int
    line: int
    what: str


class Place(NamedTuple):
    """A node at which a fault is possible.

    Args:
        node: an expression, or a statement to leave out.
        instead: the expression to put there; None for a statement.
    """

    node: ast.expr | ast.stmt
    instead: ast.expr | None
    what: str


def draw(root: Path, per_area: int, seed: int) -> list[Fault]:
    """Return ``per_area`` faults of each area, or all if it has fewer; the same for the same seed."""
    dice = random.Random(seed)
    drawn: list[Fault] = []
    for area, folders in AREAS.items():
        found = [fault for path in _files(root, folders) for fault in _faults(area, root, path)]
        drawn += sorted(dice.sample(found, min(per_area, len(found))))
    return drawn


def possible(module: ast.Module) -> list[Place]:
    """Return each place for a fault in the functions of a module, in the order of the source."""
    functions = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    inner = {child for each in functions for child in ast.walk(each) if child is not each}
    outermost = [each for each in functions if each not in inner]
    return [place for each in outermost for place in _in_body(each.body, is_function=True)]


def _files(root: Path, folders: Sequence[str]) -> Iterator[str]:
    for name in folders:
        found = [root / name] if name.endswith(".py") else sorted((root / name).rglob("*.py"))
        yield from (str(path.relative_to(root)) for path in found)


def _faults(area: str, root: Path, path: str) -> Iterator[Fault]:
    module = ast.parse((root / path).read_text(encoding="utf-8"))
    for position, place in enumerate(possible(module)):
        yield Fault(area, path, position, place.node.lineno, place.what)


def _in_body(body: Sequence[ast.stmt], *, is_function: bool = False) -> Iterator[Place]:
    for statement in body:
        # The last return of a function is what it is for; an earlier one is a guard.
        is_end = is_function and statement is body[-1]
        if _can_be_left_out(statement) and not is_end:
            yield Place(statement, None, f"without: {_first_line(statement)}")
        yield from _in_statement(statement)


def _can_be_left_out(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call() | ast.Await()):
            return not _is_logging(statement.value)
        case ast.Return(value=value):
            return value is not None
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
        case _:
            return isinstance(statement, _LEFT_OUT)


def _is_logging(value: ast.expr) -> bool:
    return ast.unparse(value).startswith("_log.")


def _in_statement(statement: ast.stmt) -> Iterator[Place]:
    match statement:
        case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
            yield from _in_body(body, is_function=True)
        case ast.AnnAssign(value=ast.expr() as value):
            yield from _in_expression(value)
        case ast.ClassDef() | ast.Assert() | ast.AnnAssign() | ast.Expr(value=ast.Constant()):
            return
        case ast.If(test=test):
            yield Place(test, ast.UnaryOp(ast.Not(), test), f"not: {_first_line(test)}")
            yield from _in_fields(statement)
        case _:
            yield from _in_fields(statement)


def _in_fields(statement: ast.stmt) -> Iterator[Place]:
    for _, field in ast.iter_fields(statement):
        parts = field if isinstance(field, list) else [field]
        if parts and isinstance(parts[0], ast.stmt):
            yield from _in_body(parts)
        else:
            yield from _in_parts(parts)


def _in_parts(parts: Sequence[object]) -> Iterator[Place]:
    for part in parts:
        match part:
            case ast.expr():
                yield from _in_expression(part)
            case ast.withitem(context_expr=value):
                yield from _in_expression(value)
            case ast.ExceptHandler(body=body) | ast.match_case(guard=None, body=body):
                yield from _in_body(body)
            case ast.match_case(guard=ast.expr() as guard, body=body):
                yield from _in_expression(guard)
                yield from _in_body(body)


def _in_expression(whole: ast.expr) -> Iterator[Place]:
    # A string with expressions inside does not survive being written out again in Python 3.11.
    if isinstance(whole, ast.JoinedStr | ast.Lambda):
        return
    instead = _instead(whole)
    if instead is not None:
        yield Place(whole, instead, f"{_first_line(whole)}  ->  {_first_line(instead)}")
    for child in ast.iter_child_nodes(whole):
        match child:
            case ast.expr():
                yield from _in_expression(child)
            case ast.keyword(value=value):
                yield from _in_expression(value)
            case ast.comprehension(iter=over, ifs=conditions):
                for each in (over, *conditions):
                    yield from _in_expression(each)


def _instead(whole: ast.expr) -> ast.expr | None:
    match whole:
        case ast.Compare(left=left, ops=[first, *ops], comparators=comparators):
            return ast.Compare(left, [_COMPARISONS[type(first)](), *ops], comparators)
        case ast.BoolOp(op=op, values=values):
            return ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            if _is_sequence(left) or _is_sequence(right):
                return None  # ``-`` would be an error of types, which any test finds
            return ast.BinOp(left, _ARITHMETIC[type(op)](), right)
        case ast.Constant(value=bool(value)):
            return ast.Constant(not value)
        case ast.Constant(value=int(value)):
            return ast.Constant(value + 1)
        case _:
            return None


def _is_sequence(operand: ast.expr) -> bool:
    match operand:
        case ast.JoinedStr() | ast.List() | ast.Tuple() | ast.ListComp():
            return True
        case ast.Constant(value=str() | bytes()):
            return True
        case _:
            return False


def _first_line(node: ast.AST) -> str:
    text = ast.unparse(node).split("\n")[0]
    return text if len(text) <= 60 else f"{text[:57]}..."
