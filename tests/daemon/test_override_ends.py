"""The end of workspace overrides, across restarts too, and their scope."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from nousd.daemon.sessions.live_session import LiveSession
from nousd.errors import WriteFailed
from nousd.store.memory import store as memory
from nousd.tools.interface import ToolContext, ToolResult
from nousd.wire import events
from nousd.wire.objects.tool_footprint import Access
from tests.daemon.asking_bench import calls
from tests.daemon.overrides_bench import (
    LOOK,
    SECONDS,
    OverrideBench,
    WallClock,
    overriding,
)
from tests.daemon.scripted import WithoutThread, says
from tests.daemon.task_bench import PlannedModel, tasks
from tests.daemon.workspaces_bench import Folders
from tests.harness.daemon import Payload, of_type

pytestmark = pytest.mark.behaviour("an_override_asks_about_what_leads_out")

ends_in_time = pytest.mark.behaviour("an_override_ends_in_time")
reports_effect = pytest.mark.behaviour("override_workspace_says_what_took_effect")


@ends_in_time
@reports_effect
async def test_the_answer_states_the_override_that_took_effect(
    folders: Folders, autojump_clock: MockClock
) -> None:
    clock = WallClock()
    async with overriding(folders, clock=clock) as bench:
        session = await bench.session()
        answer = await bench.override(session)
        [granted] = await bench.log("workspace_override_granted")
        override = {"ttl_seconds": SECONDS, "expires_at": "2026-01-01T00:01:00.000000Z"}
        assert answer["override"] == override == await bench.shown(session)
        assert {key: granted[key] for key in override} == override
        await bench.later("workspace_override_expired", reason="expired")
        assert clock.now() == override["expires_at"]
        assert await bench.shown(session) is None


@reports_effect
@pytest.mark.parametrize("seconds", [30, 86_400])
@pytest.mark.slow
async def test_an_override_at_the_bounds_lasts_exactly_its_ttl(
    seconds: int, folders: Folders, autojump_clock: MockClock
) -> None:
    clock = WallClock()
    async with overriding(folders, clock=clock) as bench:
        session = await bench.session()
        before = trio.current_time()
        await bench.override(session, seconds)
        with trio.fail_after(seconds + 60):
            await bench.later("workspace_override_expired")
        assert trio.current_time() - before == pytest.approx(seconds, abs=0.1)


@reports_effect
@pytest.mark.parametrize("seconds", [-1, 1, 29, 86_401, "60", None, 60.5, True])
async def test_a_ttl_outside_the_bounds_is_refused(seconds: Any, folders: Folders) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        error = await bench.client.refusal(
            "override_workspace", session_id=session, ttl_seconds=seconds
        )
        assert error["code"] == "invalid_payload"
        assert error["message"].startswith("ttl_seconds ")
        assert await bench.shown(session) is None


async def test_a_new_override_replaces_the_last_and_each_ends_once(
    folders: Folders, autojump_clock: MockClock
) -> None:
    async with overriding(folders, clock=WallClock()) as bench:
        session = await bench.session()
        await bench.override(session, 40)
        await trio.sleep(35)
        await bench.override(session, 30)
        await trio.sleep(25)
        assert await bench.shown(session) is not None
        await bench.later("workspace_override_expired", reason="expired")
        await bench.override(session)
        await bench.override(session, 0)
        assert await bench.override(session, 0) == {"session_id": session}
        ends = await bench.log("workspace_override_expired")
        assert [end["reason"] for end in ends] == ["replaced", "expired", "ended"]
        assert len(await bench.log("workspace_override_granted")) == 3


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
async def test_setting_the_wall_clock_never_extends_an_override(
    ahead: float, folders: Folders, autojump_clock: MockClock
) -> None:
    clock = WallClock()
    async with overriding(folders, clock=clock) as bench:
        session = await bench.session()
        await bench.override(session)
        began = trio.current_time()
        clock.ahead = ahead
        call_id = await bench.start(session, folders.outside / "name.txt")
        if ahead > 0:
            # The end does not wait for the next check of the clock.
            assert "path_outside_workdir" in (await bench.end_of(call_id)).text
        await bench.later("workspace_override_expired", reason="expired")
        assert trio.current_time() - began <= (10 if ahead > 0 else SECONDS)


@ends_in_time
async def test_a_pending_approval_is_denied_with_a_reason_when_the_override_expires(
    folders: Folders, autojump_clock: MockClock
) -> None:
    async with overriding(folders, clock=WallClock()) as bench:
        session = await bench.session()
        override = (await bench.override(session))["override"]
        request = await bench.asked(session, folders.outside / "name.txt")
        assert request["expires_at"] == override["expires_at"]
        await bench.later("workspace_override_expired")
        decision = await bench.decision(request["tool_call_id"])
        assert (decision["approved"], decision["by"]) == (False, "policy")
        assert decision["reason"] == "the override of the workspace has expired"
        named = {key: request[key] for key in ("tool_call_id", "attempt", "input_hash")}
        error = await bench.client.refusal("confirm_tool", decision="once", **named)
        assert error["message"] == "already_decided"


async def test_a_pending_approval_is_not_carried_over_into_the_override_after_an_expired_one(
    folders: Folders, autojump_clock: MockClock
) -> None:
    clock = WallClock()
    async with overriding(folders, clock=clock) as bench:
        session = await bench.session()
        await bench.override(session)
        request = await bench.asked(session, folders.outside / "name.txt")
        clock.ahead = 3600.0
        await bench.override(session)
        assert (await bench.end_of(request["tool_call_id"])).is_error
        decision = await bench.decision(request["tool_call_id"])
        assert (decision["approved"], decision["by"]) == (False, "policy")
        assert decision["reason"] == "the override of the workspace has expired"


async def test_an_approval_after_the_expiry_time_is_refused(
    folders: Folders, autojump_clock: MockClock
) -> None:
    clock = WallClock()
    async with overriding(folders, clock=clock) as bench:
        session = await bench.session()
        await bench.override(session)
        request = await bench.asked(session, folders.outside / "name.txt")
        clock.ahead = SECONDS
        named = {key: request[key] for key in ("tool_call_id", "attempt", "input_hash")}
        error = await bench.client.refusal("confirm_tool", decision="once", **named)
        assert error["message"] == "already_decided"
        assert (await bench.end_of(request["tool_call_id"])).is_error


async def test_an_override_that_ends_during_the_policy_check_asks_nobody(
    folders: Folders,
) -> None:
    class _Late(WithoutThread, frozen=True, kw_only=True):
        async def access(self, args: Any, context: ToolContext) -> Access:
            access = self.access_of(args, context)
            live = await bench.daemon.services.sessions.get(session)
            bench.daemon.services.run_services.overrides.end(live, "ended")
            return access

    facts = {name: getattr(LOOK, name) for name in LOOK.__struct_fields__}
    async with overriding(folders, tools=[_Late(**facts | {"name": "late"})]) as bench:
        session = await bench.session()
        await bench.override(session)
        call_id = await bench.start(session, folders.outside / "name.txt", "late")
        assert (await bench.end_of(call_id)).is_error
        decision = await bench.decision(call_id)
        assert decision["by"] == "policy"
        assert decision["reason"].endswith("and the override of the workspace is over")
        assert not await bench.log("permission_requested")


async def test_an_expiry_that_cannot_be_written_takes_effect_and_is_logged_later(
    folders: Folders, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = LiveSession.decide
    fails = True

    def failing(live: LiveSession, decided: Any, **more: Any) -> Any:
        if fails and isinstance(decided[0], events.WorkspaceOverrideExpired):
            raise WriteFailed("the disk is gone")
        return decide(live, decided, **more)

    monkeypatch.setattr(LiveSession, "decide", failing)
    async with overriding(folders, clock=WallClock()) as bench:
        session = await bench.session()
        await bench.override(session)
        request = await bench.asked(session, folders.outside / "name.txt")
        await trio.sleep(SECONDS + 1)
        assert await bench.shown(session) is None
        assert (await bench.end_of(request["tool_call_id"])).is_error
        call_id = await bench.start(session, folders.outside / "name.txt")
        assert "path_outside_workdir" in (await bench.end_of(call_id)).text
        fails = False
        await bench.later("workspace_override_expired", reason="expired")
        assert await bench.shown(session) is None


@pytest.mark.parametrize("reason", ["ended", "attached"])
async def test_ending_an_override_denies_its_pending_call_and_attaching_waits_for_it(
    reason: str, folders: Folders
) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        request = await bench.asked(session, folders.outside / "name.txt")
        if reason == "attached":
            # A call that waits for approval is a running call: its session cannot be attached elsewhere.
            error = await bench.client.refusal(
                "attach_session", session_id=session, workspace=str(folders.a)
            )
            assert error["message"] == "run_in_progress"
            await bench.answer(request)
            await bench.client.request(
                "attach_session", session_id=session, workspace=str(folders.a)
            )
        else:
            await bench.override(session, 0)
            assert (await bench.end_of(request["tool_call_id"])).is_error
            decision = await bench.decision(request["tool_call_id"])
            assert decision["reason"] == "the override of the workspace was ended"
        [end] = await bench.log("workspace_override_expired")
        assert end["reason"] == reason
        assert await bench.shown(session) is None


async def test_replacing_an_override_keeps_its_pending_approvals(folders: Folders) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        request = await bench.asked(session, folders.outside / "name.txt")
        await bench.override(session)
        assert (await bench.answer(request)).text == "this is outside\n"


async def test_a_started_call_finishes_after_its_override_expires(
    folders: Folders, autojump_clock: MockClock
) -> None:
    async def slowly(args: Any, context: ToolContext) -> ToolResult:
        with context.path_sandbox.locate(args.path) as place:
            await trio.sleep(2 * SECONDS)
            with place.open_file() as file:
                return ToolResult(file.read().decode())

    slow = WithoutThread(
        name="slow",
        description="Looks slowly.",
        source="builtin",
        arguments=LOOK.arguments,
        function=slowly,
        access_of=LOOK.access_of,
    )
    async with overriding(folders, clock=WallClock(), tools=[slow], stale_seconds=1e6) as bench:
        session = await bench.session()
        await bench.override(session)
        request = await bench.asked(session, folders.outside / "name.txt", tool="slow")
        await bench.client.request(
            "confirm_tool",
            decision="once",
            **{key: request[key] for key in ("tool_call_id", "attempt", "input_hash")},
        )
        await bench.later("workspace_override_expired")
        await bench.later("tool_call_completed")
        assert (await bench.end_of(request["tool_call_id"])).text == "this is outside\n"


# --- across restarts -----------------------------------------------------------------------------


@ends_in_time
async def test_the_remaining_time_of_an_override_survives_a_restart(
    folders: Folders, autojump_clock: MockClock
) -> None:
    clock = WallClock()
    async with memory.open_store() as store:
        async with overriding(folders, clock=clock, store=store) as bench:
            session = await bench.session()
            before = (await bench.override(session))["override"]
            await trio.sleep(20)
        await trio.sleep(20)
        began = trio.current_time()
        async with overriding(folders, clock=clock, store=store) as bench:
            assert await bench.shown(session) == before
            request = await bench.asked(session, folders.outside / "name.txt")
            assert (await bench.answer(request)).text == "this is outside\n"
            await bench.later("workspace_override_expired", reason="expired")
            assert trio.current_time() - began == pytest.approx(20, abs=0.1)


@ends_in_time
async def test_an_override_that_expired_during_downtime_allows_nothing_and_ends_once(
    folders: Folders, autojump_clock: MockClock
) -> None:
    clock = WallClock()
    async with memory.open_store() as store:
        async with overriding(folders, clock=clock, store=store) as bench:
            session = await bench.session()
            await bench.override(session)
        await trio.sleep(SECONDS)
        async with overriding(folders, clock=clock, store=store) as bench:
            call_id = await bench.start(session, folders.outside / "name.txt")
            assert "path_outside_workdir" in (await bench.end_of(call_id)).text
            [end] = await bench.log("workspace_override_expired")
            assert end["reason"] == "expired"
            assert await bench.shown(session) is None
        # The end is logged only once.
        async with overriding(folders, clock=clock, store=store) as bench:
            assert len(await bench.log("workspace_override_expired")) == 1


async def test_a_clock_set_back_during_downtime_does_not_extend_an_override_beyond_its_ttl(
    folders: Folders, autojump_clock: MockClock
) -> None:
    clock = WallClock()
    async with memory.open_store() as store:
        async with overriding(folders, clock=clock, store=store) as bench:
            session = await bench.session()
            await bench.override(session)
        clock.ahead = -3600.0
        began = trio.current_time()
        async with overriding(folders, clock=clock, store=store) as bench:
            await bench.later("workspace_override_expired", reason="expired")
            assert trio.current_time() - began <= SECONDS


# --- scope -----------------------------------------------------------------------------------------


async def test_an_override_applies_to_one_session_and_not_to_its_branches(folders: Folders) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        branch = (await bench.client.request("branch_session", session_id=session))["session_id"]
        other = await bench.session()
        for each in (branch, other):
            call_id = await bench.start(each, folders.outside / "name.txt")
            assert "path_outside_workdir" in (await bench.end_of(call_id)).text


async def test_the_override_of_a_deleted_session_writes_no_expiry_event(
    folders: Folders, autojump_clock: MockClock
) -> None:
    async with overriding(folders, clock=WallClock()) as bench:
        session = await bench.session()
        await bench.override(session)
        await bench.client.request("delete_session", session_id=session)
        await trio.sleep(2 * SECONDS)
        assert not await bench.log("workspace_override_expired")
        await bench.client.request("ping")


async def test_a_deleted_session_does_not_count_toward_the_override_limit(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nousd.daemon.policy.overrides.OVERRIDES_MAX", 1)
    async with overriding(folders) as bench:
        first, second = await bench.session(), await bench.session()
        await bench.override(first)
        refused = await bench.client.refusal(
            "override_workspace", session_id=second, ttl_seconds=SECONDS
        )
        assert refused["message"] == "too_many_overrides"
        await bench.client.request("delete_session", session_id=first)
        await bench.override(second)


@pytest.mark.parametrize("overridden", [True, False])
async def test_a_task_asks_at_the_root_only_under_the_roots_override(
    overridden: bool, folders: Folders
) -> None:
    model = PlannedModel()
    target = folders.outside / "name.txt"
    async with overriding(folders, provider=model) as bench:
        session = await bench.session()
        if overridden:
            await bench.override(session)
        model.plans["go"] += [tasks({"prompt": "look"}), says("done")]
        model.plans["look"] += [calls(("look", json.dumps({"path": str(target)}))), says("seen")]
        await bench.client.request("prompt", text="go", wait=False, session_id=session)
        if overridden:
            request = (await bench.events.until("permission_requested", session_id=session))[
                "payload"
            ]
            assert request["outside"] == [str(target)]
            child = request["origin"]["session_id"]
            error = await bench.client.refusal(
                "override_workspace", session_id=child, ttl_seconds=SECONDS
            )
            assert error["message"] == "session_of_task"
            await bench.client.request(
                "confirm_tool",
                decision="once",
                **{key: request[key] for key in ("tool_call_id", "attempt", "input_hash")},
            )
        run = await _run_of(bench, session)
        results = [
            end["result"]
            for end in of_type(run, "tool_execution_end")
            if end["tool_name"] == "look"
        ]
        assert results == (
            ["this is outside\n"] if overridden else [f"tool_error: path_outside_workdir: {target}"]
        )


async def _run_of(bench: OverrideBench, session_id: str) -> list[Payload]:
    await bench.events.until("agent_end", session_id=session_id)
    return list(bench.events.seen)


async def test_a_tasks_pending_approval_is_denied_when_the_roots_override_ends(
    folders: Folders,
) -> None:
    model = PlannedModel()
    target = folders.outside / "name.txt"
    async with overriding(folders, provider=model) as bench:
        session = await bench.session()
        await bench.override(session)
        model.plans["go"] += [tasks({"prompt": "look"}), says("done")]
        model.plans["look"] += [calls(("look", json.dumps({"path": str(target)}))), says("seen")]
        await bench.client.request("prompt", text="go", wait=False, session_id=session)
        await bench.events.until("permission_requested", session_id=session)
        await bench.override(session, 0)
        run = await _run_of(bench, session)
        denied = of_type(run, "tool_call_denied")
        assert {each["reason"] for each in denied} == {"the override of the workspace was ended"}
