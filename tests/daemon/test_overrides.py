"""Overrides of a workspace: what leads out is asked about instead of refused, for a while."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, get_args

import pytest
import trio
from trio.testing import MockClock

from nousd.daemon.live_session import LiveSession
from nousd.daemon.permissions import RulePermissions
from nousd.daemon.workspace_settings import workspaces_of_settings
from nousd.errors import WriteFailed
from nousd.extensions.api import ExtensionApi, Registered
from nousd.machine.rules import RuleDecision, rules_of
from nousd.store import memory
from nousd.tools.interface import ToolContext, ToolResult
from nousd.wire import events
from nousd.wire.access import Access
from nousd.wire.entries import PermissionMode
from tests.daemon.asking_bench import calls
from tests.daemon.overrides_bench import (
    LOOK,
    SECONDS,
    Look,
    OverrideBench,
    WallClock,
    overriding,
)
from tests.daemon.scripted import WithoutThread, says
from tests.daemon.task_bench import PlannedModel, tasks
from tests.daemon.workspaces_bench import Folders, folders_in
from tests.daemon_harness import Payload, of_type

pytestmark = pytest.mark.behaviour("an_override_asks_about_what_leads_out")

MODES: Final[tuple[PermissionMode, ...]] = get_args(PermissionMode)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return folders_in(tmp_path)


def ruled(folders: Folders, mode: PermissionMode, **rules: list[str]) -> RulePermissions:
    kinds: dict[str, RuleDecision] = {"allow": "allow", "ask": "ask", "deny": "deny"}
    all_rules = [
        rule for kind, texts in rules.items() for rule in rules_of(kinds[kind], texts, "a test")
    ]
    return RulePermissions(mode, all_rules, workspaces_of_settings(folders.settings()))


# --- what is asked ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rule", ["none", "allow", "granted", "deny"])
@pytest.mark.parametrize("overridden", [True, False])
async def test_what_leads_out_is_asked_about_in_every_mode_unless_a_rule_denies_it(
    mode: PermissionMode, rule: str, overridden: bool, folders: Folders
) -> None:
    rules = {rule: ["look"]} if rule in {"allow", "deny"} else {}
    permissions = ruled(folders, mode, **rules)
    async with overriding(folders, permissions=permissions) as bench:
        session = await bench.session()
        if rule == "granted":
            live = await bench.daemon.core.sessions.get(session)
            await bench.daemon.core.sessions.update(live, granted=("look",)).wait_committed()
        if overridden:
            await bench.override(session)
        target = folders.outside / "name.txt"
        call_id = await bench.start(session, target)
        if overridden and rule != "deny":
            request = (await bench.events.until("permission_requested"))["payload"]
            assert request["outside"] == [str(target)]
            assert request["reason"] == f"it leads out of the workspace, to {target}"
            assert "rule" not in request
            assert (await bench.answer(request)).text == "this is outside\n"
            return
        if rule == "none" and mode == "ask" and not overridden:
            request = (await bench.events.until("permission_requested"))["payload"]
            assert "outside" not in request
            await bench.answer(request)
        ended = await bench.end_of(call_id)
        assert ended.is_error
        assert "this is outside" not in ended.text
        if rule == "deny":
            assert (await bench.decision(call_id))["by"] == "policy"
        else:
            assert ended.text.startswith("tool_error: path_outside_workdir")


@pytest.mark.parametrize(
    ("tool", "args", "expected"),
    [
        ("read", {"path": "{out}/name.txt"}, "this is outside"),
        ("read", {"path": "../outside/name.txt"}, "this is outside"),
        ("read", {"path": "link/name.txt"}, "this is outside"),
        ("ls", {"path": "{out}"}, "name.txt"),
        ("find", {"path": "{out}", "pattern": "*.txt"}, "{out}/name.txt"),
        ("grep", {"path": "{out}", "pattern": "this"}, "{out}/name.txt:1: this is outside"),
        ("write", {"path": "{out}/new/file.txt", "content": "x"}, "Wrote 1 bytes"),
        (
            "edit",
            {"path": "{out}/name.txt", "oldText": "is", "newText": "was", "replaceAll": True},
            "Replaced",
        ),
        (
            "patch",
            {"patch": "--- /dev/null\n+++ ../outside/n\n@@ -0,0 +1 @@\n+x\n", "strip": 0},
            "Patched 1 file",
        ),
    ],
)
async def test_every_file_tool_asks_by_the_same_means(
    tool: str, args: dict[str, Any], expected: str, folders: Folders
) -> None:
    (folders.home / "link").symlink_to(folders.outside)
    filled = {
        key: value.format(out=folders.outside) if key == "path" else value
        for key, value in args.items()
    }
    async with overriding(folders) as bench:
        session = await bench.session()
        refused = await bench.call(session, tool, **filled)
        assert "path_outside_workdir" in refused.text
        await bench.override(session)
        await bench.client.request("call_tool", session_id=session, tool=tool, args=filled)
        request = (await bench.events.until("permission_requested"))["payload"]
        assert [Path(place).is_relative_to(folders.outside) for place in request["outside"]] == [
            True
        ]
        ended = await bench.answer(request)
        assert expected.format(out=folders.outside) in ended.text
        assert not ended.is_error


async def test_what_stays_inside_is_judged_as_without_an_override(folders: Folders) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        assert (await bench.call(session, "read", path="name.txt")).text == "this is home"


async def test_the_daemons_own_places_are_refused_without_a_question(folders: Folders) -> None:
    (folders.home / "link").symlink_to(folders.state)
    async with overriding(folders, folders.home.parent, mode="ask") as bench:
        session = await bench.session()
        await bench.override(session)
        for way in (
            folders.state / "name.txt",
            "link/name.txt",
            "../state/new",
            "/proc/self/environ",
        ):
            await bench.start(session, way, "read")
            request = (await bench.events.until("permission_requested"))["payload"]
            # The mode asks for every call; that is no way out.
            assert "outside" not in request
            ended = await bench.answer(request)
            assert ended.text.startswith("tool_error: path_outside_workdir")
    async with overriding(folders, folders.home.parent) as bench:
        session = await bench.session()
        await bench.override(session)
        ended = await bench.call(session, "read", path=str(folders.state / "name.txt"))
        assert ended.text.startswith("tool_error: path_outside_workdir")


async def test_of_a_folder_outside_that_may_be_searched_the_daemons_own_places_are_not_seen(
    folders: Folders,
) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        request = await bench.asked(session, "..", tool="grep", pattern="this is")
        found = (await bench.answer(request)).text
        assert "outside/name.txt:1: this is outside" in found
        assert "this is state" not in found


async def test_a_denial_of_a_name_holds_outside_as_well(folders: Folders) -> None:
    (folders.outside / ".env").write_text("KEY=1")
    permissions = ruled(folders, "yolo", deny=["read(**/.env)"])
    async with overriding(folders, permissions=permissions) as bench:
        session = await bench.session()
        await bench.override(session)
        call_id = await bench.start(session, folders.outside / ".env", "read")
        await bench.end_of(call_id)
        assert (await bench.decision(call_id))["reason"].startswith("tool_blocked: the rule")
        request = await bench.asked(session, folders.outside, tool="grep", pattern="KEY")
        assert (await bench.answer(request)).text == "No matches found."


async def test_the_tool_of_an_extension_asks_by_the_same_means(folders: Folders) -> None:
    def peek(args: Look, context: ToolContext) -> str:
        with context.confinement.locate(args.path) as place, place.open_file() as file:
            return file.read().decode()

    registered = Registered()
    ExtensionApi("e", registered).tool(
        "peek", "Peeks.", Look, peek, classes=["read"], path_argument="path"
    )
    async with overriding(folders, tools=list(registered.tools.values())) as bench:
        session = await bench.session()
        await bench.override(session)
        request = await bench.asked(session, "../outside/name.txt", tool="peek")
        assert request["outside"] == [str(folders.outside / "name.txt")]
        assert (await bench.answer(request)).text == "this is outside"


async def test_bash_is_not_widened(folders: Folders) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        live = await bench.daemon.core.sessions.get(session)
        assert bench.daemon.core.runs.overrides.under(live.state) is not None
        # Its paths cannot be known: it is judged and held as ever.
        ended = await bench.call(session, "bash", command="pwd")
        assert ended.text.strip() == str(folders.home)
        assert not await bench.log("permission_requested")


async def test_where_nobody_can_be_asked_the_call_is_denied_at_once(folders: Folders) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.events.subscribe(types="all")
        await bench.override(session)
        call_id = await bench.start(session, folders.outside / "name.txt")
        await bench.end_of(call_id)
        decision = await bench.decision(call_id)
        assert decision["by"] == "policy"
        assert decision["reason"].endswith("and no connected client can be asked")


# --- what an answer opens ----------------------------------------------------------------------


@pytest.mark.parametrize("decision", ["session", "always"])
@pytest.mark.parametrize("rule", [None, "look"])
async def test_only_once_can_be_allowed(decision: str, rule: str | None, folders: Folders) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        request = await bench.asked(session, folders.outside / "name.txt")
        named = {key: request[key] for key in ("tool_call_id", "attempt", "input_hash")}
        more = {} if rule is None else {"rule": rule}
        error = await bench.client.refusal("confirm_tool", decision=decision, **named, **more)
        assert error["message"] == "once_only"
        assert error["details"] == {"outside": [str(folders.outside / "name.txt")]}
        assert (await bench.answer(request)).text == "this is outside\n"
        # The next such call is a question of its own.
        again = await bench.asked(session, folders.outside / "name.txt")
        assert (await bench.answer(again, "deny")).is_error


@pytest.mark.parametrize("swap", ["the link", "the folder"])
async def test_a_link_that_is_exchanged_after_the_answer_opens_nothing(
    swap: str, folders: Folders
) -> None:
    elsewhere = folders.outside.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "name.txt").write_text("this is elsewhere\n")
    (folders.home / "link").symlink_to(folders.outside)
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        request = await bench.asked(session, "link/name.txt")
        if swap == "the link":
            (folders.home / "link").unlink()
            (folders.home / "link").symlink_to(elsewhere)
        else:
            folders.outside.rename(folders.outside.with_name("before"))
            folders.outside.symlink_to(elsewhere)
        ended = await bench.answer(request)
        assert ended.text == "tool_error: path_outside_workdir: link/name.txt"


async def test_what_is_approved_is_opened_to_that_one_call(folders: Folders) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        request = await bench.asked(session, folders.outside / "name.txt")
        await bench.answer(request)
        await bench.override(session, 0)
        call_id = await bench.start(session, folders.outside / "name.txt")
        assert "path_outside_workdir" in (await bench.end_of(call_id)).text


async def test_a_run_asks_and_the_log_says_why(folders: Folders) -> None:
    target = folders.outside / "name.txt"
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        bench.provider.answer(calls(("look", json.dumps({"path": str(target)}))), says("done"))
        await bench.client.request("prompt", text="go", wait=False, session_id=session)
        request = (await bench.events.until("permission_requested"))["payload"]
        await bench.client.request(
            "confirm_tool",
            decision="once",
            **{key: request[key] for key in ("tool_call_id", "attempt", "input_hash")},
        )
        run = await bench.events.run()
        [end] = of_type(run, "tool_execution_end")
        assert end["result"] == "this is outside\n"
        [completed] = of_type(run, "tool_call_completed")
        said = completed["policy_snapshot"]["sources"]
        assert {"source": "override", "decision": "ask", "reason": request["reason"]} in said


# --- how long ------------------------------------------------------------------------------------

in_time = pytest.mark.behaviour("an_override_ends_in_time")
told = pytest.mark.behaviour("override_workspace_says_what_took_effect")


@in_time
@told
async def test_the_answer_says_exactly_what_took_effect(
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


@told
@pytest.mark.parametrize("seconds", [30, 86_400])
async def test_at_the_bounds_an_override_lasts_as_long_as_was_said(
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


@told
@pytest.mark.parametrize("seconds", [-1, 1, 29, 86_401, "60", None, 60.5, True])
async def test_beyond_the_bounds_nothing_is_granted(seconds: Any, folders: Folders) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        error = await bench.client.refusal(
            "override_workspace", session_id=session, ttl_seconds=seconds
        )
        assert error["code"] == "invalid_payload"
        assert error["message"].startswith("ttl_seconds ")
        assert await bench.shown(session) is None


async def test_an_override_is_replaced_by_the_next_and_each_has_one_end(
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
async def test_a_clock_that_is_set_makes_an_override_no_longer(
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
            # Nothing waits for the next look at the clock.
            assert "path_outside_workdir" in (await bench.end_of(call_id)).text
        await bench.later("workspace_override_expired", reason="expired")
        assert trio.current_time() - began <= (10 if ahead > 0 else SECONDS)


@in_time
async def test_a_question_is_denied_when_the_override_runs_out_and_says_so(
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


async def test_an_answer_that_comes_when_the_clock_has_passed_the_end_opens_nothing(
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


async def test_an_override_that_ends_between_the_judging_and_the_asking_asks_nobody(
    folders: Folders,
) -> None:
    class _Late(WithoutThread, frozen=True, kw_only=True):
        async def access(self, args: Any, context: ToolContext) -> Access:
            access = self.access_of(args, context)
            live = await bench.daemon.core.sessions.get(session)
            bench.daemon.core.runs.overrides.end(live, "ended")
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


async def test_an_end_that_cannot_be_written_is_an_end_and_is_told_when_it_can(
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
async def test_whatever_ends_an_override_denies_what_waits_under_it(
    reason: str, folders: Folders
) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        request = await bench.asked(session, folders.outside / "name.txt")
        if reason == "attached":
            # A call that waits is a call that runs: it is not moved away under its feet.
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


async def test_a_replaced_override_leaves_what_waits_waiting(folders: Folders) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        request = await bench.asked(session, folders.outside / "name.txt")
        await bench.override(session)
        assert (await bench.answer(request)).text == "this is outside\n"


async def test_a_call_that_has_started_is_finished_after_the_end(
    folders: Folders, autojump_clock: MockClock
) -> None:
    async def slowly(args: Any, context: ToolContext) -> ToolResult:
        with context.confinement.locate(args.path) as place:
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


@in_time
async def test_what_is_left_of_an_override_survives_a_restart(
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


@in_time
async def test_what_ran_out_while_the_daemon_was_down_is_over_at_once(
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
        # And it is told once.
        async with overriding(folders, clock=clock, store=store) as bench:
            assert len(await bench.log("workspace_override_expired")) == 1


async def test_a_clock_that_was_set_back_while_the_daemon_was_down_gives_no_more_than_was_granted(
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


# --- whose it is -----------------------------------------------------------------------------------


async def test_an_override_is_of_one_session_and_no_branch_has_it(folders: Folders) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        branch = (await bench.client.request("branch_session", session_id=session))["session_id"]
        other = await bench.session()
        for each in (branch, other):
            call_id = await bench.start(each, folders.outside / "name.txt")
            assert "path_outside_workdir" in (await bench.end_of(call_id)).text


async def test_a_deleted_session_leaves_no_override_behind(
    folders: Folders, autojump_clock: MockClock
) -> None:
    async with overriding(folders, clock=WallClock()) as bench:
        session = await bench.session()
        await bench.override(session)
        await bench.client.request("delete_session", session_id=session)
        await trio.sleep(2 * SECONDS)
        assert not await bench.log("workspace_override_expired")
        await bench.client.request("ping")


async def test_a_deleted_session_does_not_count_among_those_with_an_override(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nousd.daemon.overrides.OVERRIDES_MAX", 1)
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
async def test_a_task_asks_at_the_root_under_the_roots_override_alone(
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


async def test_when_the_roots_override_ends_a_tasks_question_is_denied(folders: Folders) -> None:
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
