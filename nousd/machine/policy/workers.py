"""The permissions of a subtask's worker: those of its parents, within its own limits.

Pure. ``machine.policy.permission`` makes the parents' decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from nousd.machine.policy.denied_paths import DeniedPaths
from nousd.machine.policy.permission import Case, Judgement, Verdict, judge
from nousd.machine.policy.rules import RuleDecision, check_rule, rules_of
from nousd.wire.objects.entries import PermissionMode
from nousd.wire.objects.policy import PolicySource
from nousd.wire.objects.tool_footprint import Access
from nousd.wire.objects.workers import WorkerSpec

_NARROWEST_FIRST: Final[tuple[PermissionMode, ...]] = ("ask", "auto", "yolo")
_STRICTEST_FIRST: Final[tuple[Verdict, ...]] = ("deny", "ask", "allow")


def narrowest(modes: Iterable[PermissionMode]) -> PermissionMode:
    """Return the strictest of one or more modes."""
    return min(modes, key=_NARROWEST_FIRST.index)


class WorkersCase(NamedTuple):
    """A worker's call, to be judged by the worker's own limits.

    Args:
        mode: the strictest mode of the worker's session and of all its parents.
        is_narrower: whether this is stricter than the parents' modes.
        granted: the rules that the user granted in these sessions.
    """

    worker: WorkerSpec
    tool: str
    access: Access
    mode: PermissionMode
    is_narrower: bool
    granted: Sequence[str]


def apply_worker_limits(by_parents: Judgement, case: WorkersCase) -> Judgement:
    """Return the parents' decision on a call, narrowed: it is allowed only if the worker's own limits
    allow it too.
    """
    if by_parents.verdict == "deny":
        return by_parents
    own = _own(case)
    name = case.worker.name
    reason = f"the worker {name}: {own.reason}"
    if own.verdict == "allow" and not case.is_narrower:
        reason = f"the worker {name} has nothing against it"
    source = PolicySource(
        source="worker", decision=own.verdict, reason=reason, rule=own.sources[0].rule
    )
    cut_down = by_parents._replace(
        sources=(*by_parents.sources, source),
        closed=DeniedPaths(
            by_parents.closed.reading + own.closed.reading,
            by_parents.closed.writing + own.closed.writing,
            by_parents.closed.repositories or own.closed.repositories,
        ),
    )
    if _STRICTEST_FIRST.index(own.verdict) < _STRICTEST_FIRST.index(by_parents.verdict):
        return cut_down._replace(verdict=own.verdict, reason=reason)
    return cut_down


def _own(case: WorkersCase) -> Judgement:
    origin = f"the worker {case.worker.name}"
    permissions = case.worker.permissions
    # If the mode is not stricter than the parents', a permission would change nothing.
    allowed = permissions.allow if case.is_narrower else ("*",)
    rules = (
        *rules_of("deny", permissions.deny, origin),
        *rules_of("ask", permissions.ask, origin),
        *rules_of("allow", allowed, origin),
        *rules_of("allow", case.granted, "the user", is_grant=True),
    )
    return judge(Case(case.tool, case.access, case.mode, rules))


def check_rules(worker: WorkerSpec) -> None:
    """Raise if a worker has an invalid rule.

    Raises:
        RuleInvalid: the message names the rule.
    """
    permissions = worker.permissions
    lists: dict[RuleDecision, tuple[str, ...]] = {
        "allow": permissions.allow,
        "ask": permissions.ask,
        "deny": permissions.deny,
    }
    for decision, texts in lists.items():
        for text in texts:
            check_rule(text, decision)


def of_parent(worker: WorkerSpec, parent: WorkerSpec | None) -> WorkerSpec:
    """Return a worker without the tools that its parent lacks."""
    if parent is None or parent.tools is UNSET:
        return worker
    tools = parent.tools
    if worker.tools is not UNSET:
        tools = tuple(name for name in worker.tools if name in parent.tools)
    return replace(worker, tools=tools)


def has_tool(worker: WorkerSpec | None, name: str) -> bool:
    """Return whether a worker has a tool; without a worker, every tool is available."""
    return worker is None or worker.tools is UNSET or name in worker.tools
