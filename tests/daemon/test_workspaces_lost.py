"""Workspaces that were removed or replaced after their session was created.

Such a session can be read but refuses work; it continues as soon as its workspace is valid again.
"""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from nousd.providers.interface import Receive
from nousd.store.memory import store as memory
from tests.daemon.asking_bench import calls
from tests.daemon.scripted import says
from tests.daemon.workspaces_bench import (
    Bench,
    Folders,
    TellingSandbox,
    several_folders,
)
from tests.harness.daemon import FakeClock, of_type

pytestmark = pytest.mark.behaviour("a_lost_workspace_refuses_work")


WORK: dict[str, dict[str, Any]] = {
    "prompt": {"text": "go", "wait": False},
    "resume": {},
    "call_tool": {"tool": "read", "args": {"path": "name.txt"}},
}
"""Commands that work in the workspace of a session."""

READS = ("get_state", "get_messages", "get_tree", "get_queue", "list_permissions", "get_todos")


async def check_reads_only(bench: Bench, session: str, word: str, cause: str = "") -> None:
    """Assert that a session can be read and refuses work for the given reason."""
    for command, payload in WORK.items():
        error = await bench.client.refusal(command, session_id=session, **payload)
        assert (error["code"], error["message"]) == ("command_rejected", word), command
        assert error["details"].keys() == {"workspace"}
        assert cause in error["cause"]
    for command in READS:
        answer = await bench.client.request(command, session_id=session)
        assert answer["session_id"] == session
    listed = (await bench.client.request("list_sessions"))["sessions"]
    assert session in {each["session_id"] for each in listed}


async def check_works(bench: Bench, session: str, name: str) -> None:
    assert (await bench.call(session, "read", path="name.txt")).text == f"this is {name}"
    assert (await bench.run(session))[-1]["payload"]["status"] == "completed"


async def test_a_session_whose_workspace_is_deleted_refuses_work_until_it_exists_again(
    folders: Folders,
) -> None:
    async with several_folders(folders) as bench:
        session = await bench.session(folders.a)
        await check_works(bench, session, "a")
        shutil.rmtree(folders.a)
        await check_reads_only(bench, session, "workspace_not_found", "there is no such folder")
        folders.a.mkdir()
        (folders.a / "name.txt").write_text("this is new\n")
        await check_works(bench, session, "new")


async def test_a_workspace_that_may_be_remote_is_checked_in_a_thread(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nousd.daemon.workspace.settings.is_local", lambda _: False)
    threads: set[str] = set()
    async with several_folders(folders) as bench:
        await bench.restrict()
        session, roots = await bench.session(folders.a), bench.daemon.services.workspaces.roots
        fault = roots.fault

        def noting(real: Path) -> str | None:
            threads.add(threading.current_thread().name)
            return fault(real)

        monkeypatch.setattr(roots, "fault", noting)
        await check_works(bench, session, "a")
        shutil.rmtree(folders.a)
        await check_reads_only(bench, session, "workspace_not_found", "there is no such folder")
    assert threads
    assert threading.main_thread().name not in threads


async def test_a_session_whose_workspace_became_a_file_refuses_work(folders: Folders) -> None:
    async with several_folders(folders) as bench:
        session = await bench.session(folders.a)
        shutil.rmtree(folders.a)
        folders.a.write_text("")
        await check_reads_only(bench, session, "workspace_not_found", "there is no such folder")


async def test_a_session_whose_workspace_became_a_link_refuses_work(folders: Folders) -> None:
    async with several_folders(folders) as bench:
        session = await bench.session(folders.a)
        folders.a.rename(folders.a.with_name("was_a"))
        # A link to an allowed workspace is not followed either.
        for target in (folders.outside, folders.b, folders.a.with_name("was_a")):
            folders.a.symlink_to(target)
            await check_reads_only(bench, session, "workspace_not_found", "is a link now")
            folders.a.unlink()
        folders.a.with_name("was_a").rename(folders.a)
        await check_works(bench, session, "a")


async def test_a_session_refuses_work_if_a_parent_of_its_workspace_became_a_link(
    folders: Folders,
) -> None:
    (folders.a / "up" / "inner").mkdir(parents=True)
    (folders.outside / "inner").mkdir()
    async with several_folders(folders) as bench:
        session = await bench.session(folders.a / "up" / "inner")
        (folders.a / "up").rename(folders.a / "was_up")
        (folders.a / "up").symlink_to(folders.outside)
        await check_reads_only(bench, session, "workspace_not_found", "is a link now")


# --- during a run ----------------------------------------------------------------------------

SWAPPED_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("read", {"path": "name.txt"}),
    ("ls", {}),
    ("find", {"pattern": "*"}),
    ("grep", {"pattern": "this"}),
    ("write", {"path": "name.txt", "content": "changed"}),
    ("write", {"path": "new.txt", "content": "made"}),
    ("edit", {"path": "name.txt", "oldText": "this", "newText": "changed"}),
    ("bash", {"command": "cat name.txt; touch new.txt"}),
    ("bash", {"command": "cat name.txt; touch new.txt", "unsandboxed": True}),
    ("git", {"subcommand": "status"}),
)


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("further_up", [False, True], ids=["the folder itself", "one further up"])
@pytest.mark.parametrize(
    ("tool", "args"), SWAPPED_CALLS, ids=[f"{tool}-{len(args)}" for tool, args in SWAPPED_CALLS]
)
async def test_a_workspace_swapped_for_a_link_during_a_run_lets_no_tool_escape(
    folders: Folders, tool: str, args: dict[str, Any], further_up: bool
) -> None:
    top = folders.a / "inner"
    inner = top / "most" if further_up else top
    inner.mkdir(parents=True)
    there = folders.outside / "most" if further_up else folders.outside
    there.mkdir(exist_ok=True)
    (there / "name.txt").write_text("this is a secret\n")
    async with several_folders(folders, folders.a, sandbox=TellingSandbox()) as bench:
        within, around = await bench.session(inner), await bench.session(folders.a)
        other = await bench.another()
        swap = f"mv {top} {top}.was && ln -s {folders.outside} {top}"

        async def swapped(receive: Receive) -> None:
            # The swap happens during the run, in the model call.
            assert not (await other.call(around, "bash", command=swap)).is_error
            await calls((tool, json.dumps(args)))(receive)

        run = await bench.run(within, swapped, says("done"))
        [end] = of_type(run, "tool_execution_end")
        assert end["is_error"]
        assert "workspace_changed" in end["result"]
        assert "secret" not in json.dumps(run)
    assert (there / "name.txt").read_text() == "this is a secret\n"
    assert not (there / "new.txt").exists()


async def test_a_run_whose_workspace_is_lost_before_its_start_fails_with_the_cause(
    folders: Folders,
) -> None:
    async with several_folders(folders) as bench:
        session = await bench.session(folders.a)
        live = await bench.daemon.services.sessions.get(session)
        of = bench.daemon.services.workspaces.of

        async def lost_meanwhile(state: Any) -> Any:
            # The check before the prompt was accepted is the last that succeeds.
            if live.run is not None and folders.a.exists():
                shutil.rmtree(folders.a)
            return await of(state)

        bench.daemon.services.workspaces.of = lost_meanwhile  # type: ignore[method-assign]
        run = await bench.run(session)
        [error] = of_type(run, "error")
        assert error["code"] == "workspace_not_found"
        assert error["cause"] == "there is no such folder"
        assert run[-1]["payload"]["status"] == "error"


# --- after a restart -------------------------------------------------------------------------


async def test_sessions_in_a_root_that_was_removed_can_be_read_but_refuse_work(
    folders: Folders,
) -> None:
    async with memory.open_store() as store:
        options: dict[str, Any] = {"store": store, "clock": FakeClock()}
        async with several_folders(folders, **options) as bench:
            a, b = await bench.session(folders.a), await bench.session(folders.b)
            await check_works(bench, a, "a")
        async with several_folders(folders, folders.b, **options) as bench:
            state = await bench.client.request("get_state", session_id=a)
            assert state["workspace"] == str(folders.a)
            await bench.restrict()
            await check_reads_only(bench, a, "workspace_not_allowed", f"{folders.b}")
            await check_works(bench, b, "b")
        async with several_folders(folders, **options) as bench:
            await check_works(bench, a, "a")


async def test_a_session_keeps_its_workspace_when_the_daemon_gets_another_workdir(
    folders: Folders,
) -> None:
    async with memory.open_store() as store:
        options: dict[str, Any] = {"store": store, "clock": FakeClock()}
        async with several_folders(folders, **options) as bench:
            session = await bench.session()
        moved = folders._replace(home=folders.outside)
        async with several_folders(moved, **options) as bench:
            await bench.restrict()
            await check_reads_only(bench, session, "workspace_not_allowed")
        async with several_folders(moved, folders.home, **options) as bench:
            await check_works(bench, session, "home")


async def test_resent_calls_and_prompts_are_recognised_after_their_workspace_is_lost(
    folders: Folders,
) -> None:
    async with several_folders(folders) as bench:
        session = await bench.session(folders.a)
        call = {**WORK["call_tool"], "session_id": session, "client_call_id": "mine"}
        first = await bench.client.request("call_tool", **call)
        prompt = {**WORK["prompt"], "session_id": session, "client_message_id": "mine"}
        bench.provider.answer(says("done"))
        started = await bench.client.request("prompt", **prompt)
        await bench.events.run(started["run_id"])
        shutil.rmtree(folders.a)
        assert await bench.client.request("call_tool", **call) == first
        again = await bench.client.request("prompt", **prompt)
        assert again["run_id"] == started["run_id"]
