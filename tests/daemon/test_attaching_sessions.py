"""Sessions attached to another workspace: the state they keep, and the state that is reset."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.store.memory import store as memory
from nousd.store.sqlite import store as sqlite
from tests.daemon.asking_bench import calls
from tests.daemon.overrides_bench import OverrideBench, overriding
from tests.daemon.scripted import says
from tests.daemon.task_bench import PlannedModel, hangs, tasks
from tests.daemon.workspaces_bench import Folders, several_folders
from tests.harness.daemon import WAIT_SECONDS, Payload

pytestmark = pytest.mark.behaviour("attach_session_moves_a_session")


async def attach(bench: OverrideBench, session_id: str, folder: Path | str, **more: Any) -> Payload:
    return await bench.client.request(
        "attach_session", session_id=session_id, workspace=str(folder), **more
    )


async def state_of(bench: OverrideBench, session_id: str) -> Payload:
    return await bench.client.request("get_state", session_id=session_id)


async def session_of_task(bench: OverrideBench) -> str:
    """Return the id of the next session that a task creates."""
    while True:
        created = (await bench.events.until("session_created"))["payload"]
        if "origin" in created:
            session_id: str = created["session_id"]
            return session_id


async def test_attaching_moves_the_session_and_reports_its_previous_workspace(
    folders: Folders,
) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        answer = await attach(bench, session, folders.a, reason="  the tests are there ")
        event = await bench.events.until("session_attached")
        expected = {
            "session_id": session,
            "workspace": str(folders.a),
            "attached_from": str(folders.home),
            "origin_workspace": str(folders.home),
            "reason": "the tests are there",
        }
        assert event["payload"] == expected
        assert answer == {**expected, "attached_at": event["ts"]}
        assert (await state_of(bench, session))["workspace"] == str(folders.a)
        assert (await bench.call(session, "read", path="name.txt")).text == "this is a"
        ended = await bench.call(session, "read", path=str(folders.home / "name.txt"))
        assert "path_outside_workdir" in ended.text


async def test_the_original_workspace_stays_recorded_after_repeated_attaching(
    folders: Folders,
) -> None:
    async with overriding(folders) as bench:
        session = await bench.session(folders.a)
        for folder in (folders.b, folders.home, folders.a, folders.a):
            await attach(bench, session, folder)
        attached = await bench.log("session_attached")
        assert [(each["attached_from"], each["workspace"]) for each in attached] == [
            (str(folders.a), str(folders.b)),
            (str(folders.b), str(folders.home)),
            (str(folders.home), str(folders.a)),
            (str(folders.a), str(folders.a)),
        ]
        assert {each["origin_workspace"] for each in attached} == {str(folders.a)}
        assert all("reason" not in each and "revoked" not in each for each in attached)


@pytest.mark.parametrize("on_disk", [True, False])
async def test_the_attached_workspace_survives_a_restart(
    on_disk: bool, folders: Folders, tmp_path: Path
) -> None:
    opened = sqlite.open_store(tmp_path / "log.db") if on_disk else memory.open_store()
    async with opened as store:
        async with overriding(folders, store=store) as bench:
            session = await bench.session(folders.a)
            first = await attach(bench, session, folders.home, reason="first")
            second = await attach(bench, session, folders.b)
        async with overriding(folders, store=store) as bench:
            live = await bench.daemon.services.sessions.get(session)
            row = await store.session(session)
            assert row is not None
            for known in (live.state, row):
                assert known.workspace == str(folders.b)
                assert known.attached_from == first["workspace"] == str(folders.home)
                assert known.origin_workspace == str(folders.a)
                assert known.attached_at == second["attached_at"]
                assert known.attach_reason is None
            assert (await bench.call(session, "read", path="name.txt")).text == "this is b"


async def test_attaching_resolves_symbolic_links(folders: Folders, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folders.a)
    async with overriding(folders) as bench:
        session = await bench.session()
        assert (await attach(bench, session, tmp_path / "link"))["workspace"] == str(folders.a)


@pytest.mark.parametrize(
    ("folder", "code", "message"),
    [
        ("{outside}", "command_rejected", "workspace_not_allowed"),
        ("{state}", "command_rejected", "workspace_not_allowed"),
        ("{a}/missing", "command_rejected", "workspace_not_found"),
        ("{a}/name.txt", "command_rejected", "workspace_not_found"),
        ("a", "invalid_payload", "workspace must be an absolute path"),
    ],
)
async def test_attaching_to_an_invalid_workspace_is_refused(
    folder: str, code: str, message: str, folders: Folders
) -> None:
    async with overriding(folders) as bench:
        await bench.restrict()
        session = await bench.session()
        named = folder.format(**{name: str(path) for name, path in folders._asdict().items()})
        error = await bench.client.refusal("attach_session", session_id=session, workspace=named)
        assert (error["code"], error["message"]) == (code, message)
        assert (await state_of(bench, session))["workspace"] == str(folders.home)
        assert not await bench.log("session_attached")


async def test_a_session_whose_workspace_is_gone_can_be_attached_to_another(
    folders: Folders,
) -> None:
    async with overriding(folders) as bench:
        session = await bench.session(folders.a)
        (folders.a / "name.txt").unlink()
        folders.a.rmdir()
        error = await bench.client.refusal("prompt", text="go", session_id=session)
        assert error["message"] == "workspace_not_found"
        await attach(bench, session, folders.b)
        assert (await bench.call(session, "read", path="name.txt")).text == "this is b"


# --- refusals during work ----------------------------------------------------------------------


async def test_attaching_is_refused_during_a_run(folders: Folders) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        bench.provider.answer(hangs)
        accepted = await bench.client.request("prompt", text="go", wait=False, session_id=session)
        error = await bench.client.refusal(
            "attach_session", session_id=session, workspace=str(folders.a)
        )
        assert error["message"] == "run_in_progress"
        assert error["details"]["run_id"] == accepted["run_id"]
        await bench.client.request("abort", session_id=session)
        await bench.events.run(accepted["run_id"])
        await attach(bench, session, folders.a)


async def test_attaching_is_refused_during_a_client_call(folders: Folders) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        request = await bench.asked(session, folders.outside / "name.txt")
        error = await bench.client.refusal(
            "attach_session", session_id=session, workspace=str(folders.a)
        )
        assert error["message"] == "run_in_progress"
        assert error["details"] == {"tool_call_ids": [request["tool_call_id"]]}
        await bench.answer(request)
        await attach(bench, session, folders.a)


async def test_attaching_is_refused_if_a_run_starts_while_the_workspace_is_checked(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        workspaces = bench.daemon.services.workspaces
        looks, found = trio.Event(), trio.Event()
        named = workspaces.open_named

        async def slowly(given: str | None) -> Any:
            looks.set()
            await found.wait()
            return await named(given)

        monkeypatch.setattr(workspaces, "open_named", slowly)
        other = await bench.daemon.connect()
        request_id = await other.ask("attach_session", session_id=session, workspace=str(folders.a))
        with trio.fail_after(WAIT_SECONDS):
            await looks.wait()
        bench.provider.answer(hangs)
        await bench.client.request("prompt", text="go", wait=False, session_id=session)
        found.set()
        answer = await other.answer(request_id)
        assert answer["error"]["message"] == "run_in_progress"
        await bench.client.request("abort", session_id=session)


async def test_a_call_accepted_during_an_attach_runs_in_the_new_workspace(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        calls = bench.daemon.services.calls
        looks, found = trio.Event(), trio.Event()
        acknowledged = calls.find_acknowledgement

        async def slowly(*args: Any) -> Any:
            looks.set()
            await found.wait()
            return await acknowledged(*args)

        monkeypatch.setattr(calls, "find_acknowledgement", slowly)
        other = await bench.daemon.connect()
        request_id = await other.ask(
            "call_tool", session_id=session, tool="look", args={"path": "name.txt"}
        )
        with trio.fail_after(WAIT_SECONDS):
            await looks.wait()
        await attach(bench, session, folders.a)
        found.set()
        call_id = (await other.answer(request_id))["payload"]["tool_call_id"]
        assert (await bench.end_of(call_id)).text == "this is a\n"


async def test_a_task_session_cannot_be_attached_by_itself(folders: Folders) -> None:
    model = PlannedModel()
    async with overriding(folders, provider=model) as bench:
        session = await bench.session()
        model.plans["go"] += [tasks({"prompt": "look"}), says("done")]
        model.plans["look"] += [says("seen")]
        await bench.client.request("prompt", text="go", session_id=session)
        error = await bench.client.refusal(
            "attach_session", session_id=await session_of_task(bench), workspace=str(folders.a)
        )
        assert error["message"] == "session_of_task"
        assert error["details"] == {"session_id": session}


async def test_attaching_a_session_moves_its_task_sessions(folders: Folders) -> None:
    model = PlannedModel()
    async with overriding(folders, provider=model) as bench:
        session = await bench.session()
        model.plans["go"] += [tasks({"prompt": "look"}), says("done")]
        model.plans["look"] += [tasks({"prompt": "look closer"}), says("seen")]
        model.plans["look closer"] += [says("seen")]
        await bench.client.request("prompt", text="go", session_id=session)
        below = [await session_of_task(bench), await session_of_task(bench)]
        await attach(bench, session, folders.a, reason="all of it")
        for moved in (session, *below):
            attached = (await bench.events.until("session_attached"))["payload"]
            assert attached["session_id"] == moved
            assert attached["workspace"] == str(folders.a)
            assert attached["reason"] == "all of it"
        for moved in (session, *below):
            assert (await state_of(bench, moved))["workspace"] == str(folders.a)
            assert (await bench.call(moved, "read", path="name.txt")).text == "this is a"


async def test_attaching_is_refused_while_a_task_session_runs(folders: Folders) -> None:
    model = PlannedModel()
    async with overriding(folders, provider=model) as bench:
        session = await bench.session()
        model.plans["go"] += [tasks({"prompt": "look"}), says("done")]
        model.plans["look"] += [says("seen")]
        await bench.client.request("prompt", text="go", session_id=session)
        below = await session_of_task(bench)
        model.plans["look"] += [hangs]
        started = await bench.client.request("prompt", text="again", session_id=below, wait=False)
        error = await bench.client.refusal(
            "attach_session", session_id=session, workspace=str(folders.a)
        )
        assert error["message"] == "run_in_progress"
        assert error["details"] == {"run_id": started["run_id"]}
        for each in (session, below):
            assert (await state_of(bench, each))["workspace"] == str(folders.home)
        await bench.client.request("abort", session_id=below)


# --- state that moves, and state that is reset ---------------------------------------------------


async def test_attaching_revokes_the_rules_granted_in_the_session(folders: Folders) -> None:
    async with overriding(folders, mode="ask") as bench:
        session = await bench.session()
        request = await bench.asked(session, "name.txt")
        await bench.answer(request, "session")
        granted = (await bench.client.request("list_permissions", session_id=session))["granted"]
        assert granted == ["look(name.txt)"]
        answer = await attach(bench, session, folders.a)
        assert answer["revoked"] == granted
        attached = (await bench.events.until("session_attached"))["payload"]
        assert attached["revoked"] == granted
        # The same name means another file here, so the call needs approval.
        again = await bench.asked(session, "name.txt")
        assert (await bench.answer(again)).text == "this is a\n"
        # After moving back, the call still needs approval.
        await attach(bench, session, folders.home)
        await bench.answer(await bench.asked(session, "name.txt"))


async def test_attaching_keeps_ask_and_deny_rules_and_drops_allow_rules(folders: Folders) -> None:
    rules = {"allow": ["look"], "ask": ["write"], "deny": ["bash"]}
    async with overriding(folders, mode="ask") as bench:
        made = await bench.client.request("new_session", rules=rules)
        session = made["session_id"]
        assert (await bench.call(session, "look", path="name.txt")).text == "this is home\n"
        answer = await attach(bench, session, folders.a)
        assert answer["revoked"] == ["look"]
        state = (await bench.daemon.services.sessions.get(session)).state
        assert state.rules is not None
        assert (state.rules.allow, state.rules.ask, state.rules.deny) == ((), ("write",), ("bash",))
        await bench.answer(await bench.asked(session, "name.txt"))


async def test_attaching_keeps_the_todo_list_and_the_transcript(folders: Folders) -> None:
    todos = [{"id": "1", "content": "move", "status": "pending"}]
    async with overriding(folders) as bench:
        session = await bench.session()
        bench.provider.answer(calls(("todo", json.dumps({"todos": todos}))))
        await bench.run(session)
        before = await bench.client.request("get_messages", session_id=session)
        await attach(bench, session, folders.a)
        kept = await bench.client.request("get_todos", session_id=session)
        assert [todo["content"] for todo in kept["todos"]] == ["move"]
        after = await bench.client.request("get_messages", session_id=session)
        assert after["messages"] == before["messages"]


async def test_attaching_ends_a_workspace_override(folders: Folders) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        await attach(bench, session, folders.a)
        [end] = await bench.log("workspace_override_expired")
        assert end["reason"] == "attached"
        assert await bench.shown(session) is None
        call_id = await bench.start(session, folders.home / "name.txt")
        assert "path_outside_workdir" in (await bench.end_of(call_id)).text


async def test_attaching_reads_the_instructions_of_the_new_workspace_again(
    folders: Folders,
) -> None:
    (folders.home / "AGENTS.md").write_text("the way of home")
    (folders.a / "AGENTS.md").write_text("the first way of a")
    async with overriding(folders) as bench:
        session = await bench.session(folders.a)
        await bench.run(session)
        (folders.a / "AGENTS.md").write_text("the second way of a")
        await bench.run(session)
        await attach(bench, session, folders.home)
        await bench.run(session)
        await attach(bench, session, folders.a)
        await bench.run(session)
        systems = [request.system for request in bench.provider.requests]
        ways = (
            "the first way of a",
            "the first way of a",
            "the way of home",
            "the second way of a",
        )
        for system, way in zip(systems, ways, strict=True):
            assert way in system
        for system, folder in zip(
            systems, (folders.a, folders.a, folders.home, folders.a), strict=True
        ):
            assert f"The working folder is {folder}" in system or str(folder) in system


async def test_attaching_reads_the_rules_of_the_new_workspace_again(folders: Folders) -> None:
    for folder in (folders.a, folders.home):
        (folder / ".nousd").mkdir()
    settings = folders.a / ".nousd" / "config.toml"
    settings.write_text('[permissions]\ndeny = ["look(name.txt)"]\n')
    async with overriding(folders) as bench:
        session = await bench.session(folders.a)
        assert (await bench.call(session, "look", path="name.txt")).is_error
        settings.write_text("")
        # The session keeps the rules that it started with.
        assert (await bench.call(session, "look", path="name.txt")).is_error
        await attach(bench, session, folders.home)
        assert (await bench.call(session, "look", path="name.txt")).text == "this is home\n"
        await attach(bench, session, folders.a)
        assert (await bench.call(session, "look", path="name.txt")).text == "this is a\n"


async def test_a_call_is_refused_while_its_session_is_attached_continuously(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with several_folders(folders) as bench:
        session = await bench.session()
        # Each attempt asks three times, and the last answer differs from the first.
        workspaces = itertools.cycle((str(folders.a), str(folders.a), str(folders.b)))
        monkeypatch.setattr(bench.daemon.services.workspaces, "path_of", lambda _: next(workspaces))
        with trio.fail_after(WAIT_SECONDS):
            error = await bench.client.refusal("call_tool", tool="ls", session_id=session)
        assert (error["code"], error["message"]) == ("command_rejected", "session_changed")
