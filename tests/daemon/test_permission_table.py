"""The decision on a call by mode, tool class, rule and the user's reaction, as one table.

A denied call has no side effect; an approved call has exactly one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import msgspec
import pytest
from trio.testing import MockClock

from nousd.daemon.policy import grants
from nousd.daemon.policy.permissions import RulePermissions
from nousd.machine.policy.rules import Rule, RuleDecision, rules_of
from nousd.tools.arguments import struct_arguments
from nousd.tools.interface import ToolContext, ToolResult
from nousd.wire.objects.entries import PermissionMode
from nousd.wire.objects.tool_footprint import Access, ToolClass
from tests.daemon.asking_bench import Bench, asking_daemon, calls, naming
from tests.daemon.scripted import WithoutThread
from tests.harness.daemon import Event, of_type

RULES: Final = ("none", "allow", "ask", "deny", "granted")

TABLE: Final = """
             none  allow ask   deny  granted
nothing      RRR   RRR   QQR   DDD   RRR
read         QRR   RRR   QQR   DDD   RRR
write        QRR   RRR   QQR   DDD   RRR
protected    QQR   QQR   QQR   DDD   RRR
confined     QRR   RRR   QQR   DDD   RRR
program      QQR   RRR   QQR   DDD   RRR
network      QQR   RRR   QQR   DDD   RRR
unreadable   QRR   QRR   QQR   QQD   RRR
outside      QQQ   QQQ   QQQ   DDD   QQQ
"""
"""Kinds of calls by rule: in modes ask, auto and yolo, a call runs (R), needs approval (Q) or is denied
(D). ``unreadable`` is a command line that no rule about words can judge. ``outside`` has a path outside
an overridden workspace."""

INTERACTIONS: Final = {
    "nobody can answer": ("denied", "policy"),
    "nobody answers": ("denied", "timeout"),
    "the user says no": ("denied", "user"),
    "the user says yes": ("runs", "user"),
}
"""The user's reaction to an approval request -> the outcome of the call, and who decided."""

ANSWERS: Final = {"the user says no": "deny", "the user says yes": "once"}

UNASKED: Final = {"R": ("runs", "policy"), "D": ("denied", "policy")}


def access_to(*classes: ToolClass, **facts: Any) -> Access:
    return Access(classes=frozenset(classes), **facts)


CALLS: Final = {
    "nothing": (Access(), "", ""),
    "read": (access_to("read", paths=("place",)), "place", "place"),
    "write": (access_to("write", paths=("place",)), "place", "place"),
    "protected": (access_to("write", paths=("AGENTS.md",)), "AGENTS.md", "AGENTS.md"),
    "confined": (access_to("exec", command="run it", is_confined=True), "run *", "=run it"),
    "program": (access_to("exec", command="run it"), "run *", "=run it"),
    "network": (access_to("network", hosts=("host.example",)), "*.example", "host.example"),
    "unreadable": (access_to("exec", command="run >it", is_confined=True), "run *", "=run >it"),
    "outside": (
        access_to("read", paths=("../place",), outside=("/place",)),
        "**/place",
        "**/place",
    ),
}
"""Kind of call -> its access, the pattern of a rule about it, the pattern of a rule about it alone."""


class Cell(NamedTuple):
    """A cell of the table: a call and its expected ``verdict``."""

    mode: PermissionMode
    kind: str
    rule: str
    verdict: str


def cells() -> list[Cell]:
    """Return every cell of the table."""
    head, *lines = (line.split() for line in TABLE.strip().splitlines())
    assert tuple(head) == RULES
    modes: tuple[PermissionMode, ...] = get_args(PermissionMode)
    return [
        Cell(mode, kind, rule, verdict)
        for kind, *cells in lines
        for rule, cell in zip(RULES, cells, strict=True)
        for mode, verdict in zip(modes, cell, strict=True)
    ]


CELLS: Final = cells()


def rules_for(name: str, pattern: str) -> tuple[Rule, ...]:
    decisions: dict[str, RuleDecision] = {"allow": "allow", "ask": "ask", "deny": "deny"}
    decision = decisions.get(name)
    return () if decision is None else rules_of(decision, [text_of(pattern)], "a test")


class _Nothing(msgspec.Struct):
    pass


class Actor:
    """A tool with a side effect; ``acts`` counts it."""

    def __init__(self, access: Access) -> None:
        self.acts = 0
        self.tool = WithoutThread(
            name="act",
            description="Acts.",
            source="scripted",
            arguments=struct_arguments(_Nothing),
            function=self._run,
            access_of=lambda _args, _context: access,
        )

    async def _run(self, _args: Any, _context: ToolContext) -> ToolResult:
        self.acts += 1
        return ToolResult("done")


def text_of(pattern: str) -> str:
    return f"act({pattern})" if pattern else "act"


async def run_of(bench: Bench, decision: str | None) -> Sequence[Event]:
    """Return the events of a run that calls ``act`` once; decide its approval request, if any."""
    run_id = await bench.start(calls(("act", "{}")))
    if decision is not None:
        request = (await bench.events.until("permission_requested"))["payload"]
        await bench.client.request("confirm_tool", **naming(request, decision))
    await bench.events.until("agent_end", run_id=run_id)
    return bench.events.seen


@pytest.mark.slow(keep=10)
@pytest.mark.behaviour("permissions_are_decided_by_what_a_call_does")
@pytest.mark.parametrize(
    ("cell", "interaction"),
    [
        pytest.param(cell, interaction, id="-".join([*cell, interaction.replace(" ", "_")]))
        for cell in CELLS
        # Without an approval request the user has nothing to decide.
        for interaction in (INTERACTIONS if cell.verdict == "Q" else ("nobody can answer",))
    ],
)
async def test_a_call_runs_or_is_denied_according_to_the_table(
    cell: Cell, interaction: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    # Not while a thread is at work, which the clock does not see.
    autojump_clock.autojump_threshold = 0.2
    access, pattern, exact = CALLS[cell.kind]
    actor = Actor(access)
    is_asked = cell.verdict == "Q" and interaction != "nobody can answer"
    async with asking_daemon(
        tmp_path,
        permissions=RulePermissions(cell.mode, rules_for(cell.rule, pattern)),
        approval_timeout_seconds=2,
        subscription={"types": "all", "confirms": interaction != "nobody can answer"},
        tools=[actor.tool],
    ) as bench:
        if cell.rule == "granted":
            services = bench.daemon.services
            workspace = services.workspaces.default.path
            grants.grant_in(services.sessions, workspace, text_of(exact))
        if cell.kind == "outside":
            await bench.client.request("new_session")
            await bench.client.request("override_workspace", ttl_seconds=3600)
        run = await run_of(bench, ANSWERS.get(interaction) if is_asked else None)
    outcome, by = INTERACTIONS[interaction] if cell.verdict == "Q" else UNASKED[cell.verdict]
    assert actor.acts == (outcome == "runs")
    (decision,) = of_type(run, "tool_call_approved") + of_type(run, "tool_call_denied")
    assert decision["by"] == by
    (end,) = of_type(run, "tool_execution_end")
    assert end["executed"] == (outcome == "runs")
    assert len(of_type(run, "permission_requested")) == is_asked
    sources = [each["source"] for each in of_type(run, "tool_call_policy_evaluated")]
    is_denied_by_rule = cell.verdict == "D" and cell.kind != "unreadable"
    last_source = "override" if cell.kind == "outside" else "mode"
    assert [each for each in sources if each in ("rules", "mode", "override")] == (
        ["rules"] if is_denied_by_rule else ["rules", last_source]
    )
    assert of_type(run, "agent_end")[0]["status"] == "completed"


def test_the_table_has_every_cell() -> None:
    assert len(CELLS) == len(get_args(PermissionMode)) * len(CALLS) * len(RULES)
