"""Which calls run: mode, class, rule and what the user does about it, as one table.

A call that may not run leaves no side effect, one that may leaves exactly one.
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
"""What is called, by rule, in the modes ask, auto and yolo: it runs (R), is asked about (Q) or is denied
(D). ``unreadable`` is a command line that no rule about words can judge. ``outside`` leads out of a
workspace that is overridden."""

INTERACTIONS: Final = {
    "nobody can answer": ("denied", "policy"),
    "nobody answers": ("denied", "timeout"),
    "the user says no": ("denied", "user"),
    "the user says yes": ("runs", "user"),
}
"""What becomes of a question -> what becomes of the call, and who decided."""

ANSWERS: Final = {"the user says no": "deny", "the user says yes": "once"}

UNASKED: Final = {"R": ("runs", "policy"), "D": ("denied", "policy")}


def touching(*classes: ToolClass, **facts: Any) -> Access:
    return Access(classes=frozenset(classes), **facts)


CALLS: Final = {
    "nothing": (Access(), "", ""),
    "read": (touching("read", paths=("place",)), "place", "place"),
    "write": (touching("write", paths=("place",)), "place", "place"),
    "protected": (touching("write", paths=("AGENTS.md",)), "AGENTS.md", "AGENTS.md"),
    "confined": (touching("exec", command="run it", is_confined=True), "run *", "=run it"),
    "program": (touching("exec", command="run it"), "run *", "=run it"),
    "network": (touching("network", hosts=("host.example",)), "*.example", "host.example"),
    "unreadable": (touching("exec", command="run >it", is_confined=True), "run *", "=run >it"),
    "outside": (
        touching("read", paths=("../place",), outside=("/place",)),
        "**/place",
        "**/place",
    ),
}
"""What is called -> what it touches, the pattern of a rule about it, that of a rule about it alone."""


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


def rules_named(name: str, pattern: str) -> tuple[Rule, ...]:
    decisions: dict[str, RuleDecision] = {"allow": "allow", "ask": "ask", "deny": "deny"}
    decision = decisions.get(name)
    return () if decision is None else rules_of(decision, [text_of(pattern)], "a test")


class _Nothing(msgspec.Struct):
    pass


class Actor:
    """A tool with a side effect."""

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
    """Return the events of a run that calls ``act`` once; what it asks is answered by the decision."""
    run_id = await bench.start(calls(("act", "{}")))
    if decision is not None:
        request = (await bench.events.until("permission_requested"))["payload"]
        await bench.client.request("confirm_tool", **naming(request, decision))
    await bench.events.until("agent_end", run_id=run_id)
    return bench.events.seen


@pytest.mark.slow(keep=60)
@pytest.mark.behaviour("permissions_are_decided_by_what_a_call_does")
@pytest.mark.parametrize(
    ("cell", "interaction"),
    [
        pytest.param(cell, interaction, id="-".join([*cell, interaction.replace(" ", "_")]))
        for cell in CELLS
        # Where nobody is asked there is nothing that the user could do.
        for interaction in (INTERACTIONS if cell.verdict == "Q" else ("nobody can answer",))
    ],
)
async def test_what_becomes_of_a_call(
    cell: Cell, interaction: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    access, pattern, exact = CALLS[cell.kind]
    actor = Actor(access)
    is_asked = cell.verdict == "Q" and interaction != "nobody can answer"
    async with asking_daemon(
        tmp_path,
        permissions=RulePermissions(cell.mode, rules_named(cell.rule, pattern)),
        approval_timeout_seconds=2,
        subscription={"types": "all", "confirms": interaction != "nobody can answer"},
        tools=[actor.tool],
    ) as bench:
        if cell.rule == "granted":
            grants.grant(bench.daemon.services.sessions, None, text_of(exact))
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
    said = [each["source"] for each in of_type(run, "tool_call_policy_evaluated")]
    is_denied_by_rule = cell.verdict == "D" and cell.kind != "unreadable"
    behind = "override" if cell.kind == "outside" else "mode"
    assert [each for each in said if each in ("rules", "mode", "override")] == (
        ["rules"] if is_denied_by_rule else ["rules", behind]
    )
    assert of_type(run, "agent_end")[0]["status"] == "completed"


def test_the_table_has_every_cell() -> None:
    assert len(CELLS) == len(get_args(PermissionMode)) * len(CALLS) * len(RULES)
