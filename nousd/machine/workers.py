"""What a worker may do: all that its parents may, and of that what its own bounds leave.

Pure. How the parents' calls are judged is ``machine.permission``'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from nousd.machine.permission import Judgement, Verdict
from nousd.machine.rules import decisive, rules_of
from nousd.wire.access import Access
from nousd.wire.entries import PermissionMode
from nousd.wire.tool_events import PolicySource
from nousd.wire.workers import WorkerSpec

_NARROWEST_FIRST: Final[tuple[PermissionMode, ...]] = ("ask", "auto", "yolo")
_STRICTEST_FIRST: Final[tuple[Verdict, ...]] = ("deny", "ask", "allow")


def narrowest(modes: Iterable[PermissionMode]) -> PermissionMode:
    """Returns the mode that asks most; there must be one."""
    return min(modes, key=_NARROWEST_FIRST.index)


class WorkersCase(NamedTuple):
    """A call of a worker, as it is to be judged by the worker's own bounds.

    Args:
        mode: the narrowest of the worker's session and of all its parents'.
        granted: the rules by which the user allows calls in the sessions of these.
        in_own_mode: what would be said of the call in that mode; None if the parents' is as narrow.
    """

    worker: WorkerSpec
    tool: str
    access: Access
    mode: PermissionMode
    granted: Sequence[str]
    in_own_mode: Judgement | None


def cut(by_parents: Judgement, case: WorkersCase) -> Judgement:
    """Returns what follows for a call on which the parents' bounds say ``by_parents``."""
    if by_parents.verdict == "deny":
        return by_parents
    verdict, source = _own(case)
    is_stricter = _STRICTEST_FIRST.index(verdict) < _STRICTEST_FIRST.index(by_parents.verdict)
    judged = by_parents._replace(sources=(*by_parents.sources, source))
    return judged._replace(verdict=verdict, reason=source.reason) if is_stricter else judged


def _own(case: WorkersCase) -> tuple[Verdict, PolicySource]:
    name, permissions = case.worker.name, case.worker.permissions
    rules = (
        *rules_of("deny", permissions.deny, f"the worker {name}"),
        *rules_of("ask", permissions.ask, f"the worker {name}"),
    )
    rule = decisive(rules, case.tool, case.access)
    if rule is not None and (rule.decision == "deny" or _asks(case)):
        reason = f"the rule {rule.text} of {rule.origin}"
        return rule.decision, _source(rule.decision, reason, rule.text)
    own = case.in_own_mode
    if own is not None and own.verdict != "allow":
        return own.verdict, _source(own.verdict, f"the worker {name}: {own.reason}")
    return "allow", _source("allow", f"the worker {name} has nothing against it")


def _asks(case: WorkersCase) -> bool:
    """Whether a rule that asks does: nobody is asked in yolo, nor for what the user has granted."""
    granted = rules_of("allow", case.granted, "the user")
    return case.mode != "yolo" and decisive(granted, case.tool, case.access) is None


def _source(decision: Verdict, reason: str, rule: str | UnsetType = UNSET) -> PolicySource:
    return PolicySource(source="worker", decision=decision, reason=reason, rule=rule)


def of_parent(worker: WorkerSpec, parent: WorkerSpec | None) -> WorkerSpec:
    """Returns a worker without the tools that its parent does not have either."""
    if parent is None or parent.tools is UNSET:
        return worker
    tools = parent.tools
    if worker.tools is not UNSET:
        tools = tuple(name for name in worker.tools if name in parent.tools)
    return replace(worker, tools=tools)


def has_tool(worker: WorkerSpec | None, name: str) -> bool:
    """Whether a worker has a tool; whoever is none has all of them."""
    return worker is None or worker.tools is UNSET or name in worker.tools
