"""A runtime's own policy: it is logged, can narrow what may run, and never widens it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from nousd.daemon.policy.permissions import RulePermissions
from nousd.machine.policy.rules import rules_of
from nousd.runtimes.calls.host import RuntimeOpinion
from nousd.runtimes.interface import Runtime
from nousd.wire.objects.entries import ToolCall
from nousd.wire.objects.policy import PolicyDecision
from tests.daemon.asking_bench import Bench, asking_daemon, calls, naming
from tests.harness.daemon import Event, of_type

WHY: Final = "its own rules say so"
OUTCOMES: Final = "permission_requested", "tool_call_denied", "tool_call_started"
READS: Final = "ls"
"""A tool that mode auto allows."""
FETCHES: Final = "fetch"
"""A tool that mode auto asks about."""


AUTO: Final = RulePermissions("auto")
YOLO: Final = RulePermissions("yolo")
ALLOWED: Final = RulePermissions("auto", rules_of("allow", ["ls"], "the settings"))
DENIED: Final = RulePermissions("yolo", rules_of("deny", ["ls"], "the settings"))


class Opinionated:
    """A runtime with a policy of its own; it delegates everything else to the wrapped runtime."""

    def __init__(self, decision: PolicyDecision) -> None:
        self.asked: list[ToolCall] = []
        self._decision = decision
        self._runtime: Any = None

    def around(self, runtime: Runtime) -> Any:
        self._runtime = runtime
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    async def opinion_of(self, call: ToolCall) -> RuntimeOpinion:
        self.asked.append(call)
        return RuntimeOpinion(self._decision, WHY)


async def first_of(bench: Bench, tool: str) -> Event:
    """Start a run that calls the tool; return the first event with the outcome of the call."""
    await bench.start(calls((tool, "{}")))
    while True:
        event = await bench.events.next()
        if event["type"] in OUTCOMES:
            return event


@pytest.mark.behaviour("a_runtime_has_a_word_in_policy")
@pytest.mark.parametrize(
    ("permissions", "tool", "decision", "outcome"),
    [
        (AUTO, READS, "abstain", "tool_call_started"),
        (AUTO, READS, "allow", "tool_call_started"),
        (AUTO, READS, "ask", "permission_requested"),
        (AUTO, READS, "deny", "tool_call_denied"),
        # It cannot allow what the other sources do not allow.
        (AUTO, FETCHES, "allow", "permission_requested"),
        (AUTO, FETCHES, "deny", "tool_call_denied"),
        # Its ask does not repeat a decision of the user; its denial still applies.
        (ALLOWED, READS, "ask", "tool_call_started"),
        (ALLOWED, READS, "deny", "tool_call_denied"),
        (YOLO, READS, "ask", "tool_call_started"),
        (YOLO, READS, "deny", "tool_call_denied"),
    ],
)
async def test_a_runtimes_policy_narrows_and_never_widens(
    tmp_path: Path, permissions: RulePermissions, tool: str, decision: PolicyDecision, outcome: str
) -> None:
    runtime = Opinionated(decision)
    async with asking_daemon(
        tmp_path, permissions=permissions, around_runtime=runtime.around
    ) as bench:
        event = await first_of(bench, tool)
        assert event["type"] == outcome
        if tool == READS and outcome == "permission_requested":
            assert event["payload"]["reason"] == WHY
        if outcome == "tool_call_denied":
            assert event["payload"]["reason"] == f"tool_blocked: {WHY}"
            assert event["payload"]["by"] == "policy"
        evaluation = of_type(bench.events.seen, "tool_call_policy_evaluated")[-1]
        assert (evaluation["source"], evaluation["decision"], evaluation["reason"]) == (
            "runtime",
            decision,
            WHY,
        )
        assert [call.tool_call_id for call in runtime.asked] == [evaluation["tool_call_id"]]
        if outcome == "permission_requested":
            await bench.client.request("confirm_tool", **naming(event["payload"], "deny"))
        await bench.events.until("agent_end")


async def test_a_runtime_is_not_consulted_about_a_call_that_a_rule_denies(tmp_path: Path) -> None:
    runtime = Opinionated("allow")
    async with asking_daemon(tmp_path, permissions=DENIED, around_runtime=runtime.around) as bench:
        run = await bench.run(calls(("ls", "{}")))
    assert of_type(run, "tool_call_policy_evaluated")[-1]["source"] == "rules"
    assert runtime.asked == []


async def test_a_runtime_is_logged_as_abstaining_from_a_clients_call(tmp_path: Path) -> None:
    runtime = Opinionated("deny")
    async with asking_daemon(tmp_path, mode="yolo", around_runtime=runtime.around) as bench:
        await bench.client.request("new_session")
        await bench.client.request("call_tool", tool="ls")
        await bench.events.until("tool_call_completed")
        evaluation = of_type(bench.events.seen, "tool_call_policy_evaluated")[-1]
    assert (evaluation["source"], evaluation["decision"]) == ("runtime", "abstain")
    assert evaluation["reason"] == "no runtime asks for it"
    assert runtime.asked == []
