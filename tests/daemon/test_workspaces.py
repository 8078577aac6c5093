"""The workspaces of sessions: which are allowed, and that each session stays in its own."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.daemon.eventlog.log import Log
from nousd.daemon.workspace.workspaces import WORKSPACES_MAX
from nousd.providers.interface import Receive
from nousd.store.memory import store as memory
from nousd.wire import events
from nousd.wire.limits import PATH_CHARS_MAX
from tests.daemon.asking_bench import calls
from tests.daemon.scripted import Outcome, says
from tests.daemon.task_bench import PlannedModel, tasks
from tests.daemon.workspaces_bench import (
    ALLOW_MORE,
    Bench,
    Folders,
    TellingSandbox,
    folders_in,
    several_folders,
)
from tests.harness.daemon import WAIT_SECONDS, FakeClock, memory_daemon, of_type

pytestmark = pytest.mark.behaviour("a_session_works_in_its_folder")


async def workspace_of(bench: Bench, session_id: str) -> str:
    state = await bench.client.request("get_state", session_id=session_id)
    workspace: str = state["workspace"]
    return workspace


# --- allowed workspaces ----------------------------------------------------------------------


async def test_a_session_without_a_workspace_works_in_the_workdir_and_logs_it(
    folders: Folders,
) -> None:
    async with several_folders(folders) as bench:
        assert (await bench.client.request("get_state"))["workspace"] == str(folders.home)
        session = await bench.session()
        created = await bench.events.until("session_created")
        assert created["payload"]["workspace"] == str(folders.home)
        assert await workspace_of(bench, session) == str(folders.home)
        assert (await bench.call(session, "read", path="name.txt")).text == "this is home"


async def test_a_session_created_by_a_first_prompt_logs_its_workspace(
    folders: Folders,
) -> None:
    async with several_folders(folders) as bench:
        bench.provider.answer(says("done"))
        await bench.client.request("prompt", text="go", wait=False)
        created = await bench.events.until("session_created")
        assert created["payload"]["workspace"] == str(folders.home)
        await bench.events.run()


async def test_a_session_can_be_created_in_an_allowed_root_and_anywhere_below_it(
    folders: Folders,
) -> None:
    below = folders.a / "deep" / "er"
    below.mkdir(parents=True)
    async with several_folders(folders) as bench:
        for folder in (folders.a, folders.b, below, folders.home):
            session = await bench.session(folder)
            assert await workspace_of(bench, session) == str(folder)


async def test_a_workspace_is_stored_as_its_real_path(folders: Folders, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folders.a)
    spellings = (link, f"{folders.b}/../a/.", f"{folders.a}//")
    async with several_folders(folders) as bench:
        for spelled in spellings:
            session = await bench.session(spelled)
            created = await bench.events.until("session_created", session_id=session)
            assert created["payload"]["workspace"] == str(folders.a)
            assert (await bench.call(session, "read", path="name.txt")).text == "this is a"


async def test_a_root_given_as_a_link_allows_its_target(folders: Folders, tmp_path: Path) -> None:
    link = tmp_path / "root"
    link.symlink_to(folders.a)
    async with several_folders(folders, link) as bench:
        assert await workspace_of(bench, await bench.session(folders.a)) == str(folders.a)
        assert await workspace_of(bench, await bench.session(link)) == str(folders.a)


@pytest.mark.parametrize(
    "named",
    ["relative", "~", "~/a", "$HOME", "/a\0b"],
    ids=["relative", "home", "below home", "variable", "NUL"],
)
async def test_a_workspace_that_is_not_an_absolute_path_is_refused(
    folders: Folders, named: str
) -> None:
    async with several_folders(folders) as bench:
        error = await bench.client.refusal("new_session", workspace=named)
        assert error["code"] == "invalid_payload"
        assert error["message"] == "workspace must be an absolute path"


@pytest.mark.parametrize("command", ["new_session", "attach_session", "list_sessions"])
async def test_a_workspace_whose_path_is_not_utf8_is_refused(
    folders: Folders, command: str
) -> None:
    not_utf8 = os.fsencode(folders.a) + b"/\xff"
    os.mkdir(not_utf8)  # noqa: PTH102
    (folders.a / "link").symlink_to(os.fsdecode(not_utf8))
    async with several_folders(folders, folders.a) as bench:
        await bench.session()
        error = await bench.client.refusal(command, workspace=str(folders.a / "link"))
        assert error["code"] == "invalid_payload"
        assert error["message"] == "workspace leads to a folder whose path is not UTF-8"


async def test_the_length_of_a_workspace_path_is_bounded(
    folders: Folders,
) -> None:
    async with several_folders(folders) as bench:
        longest = str(folders.a) + "/" * (PATH_CHARS_MAX - len(str(folders.a)))
        assert await workspace_of(bench, await bench.session(longest)) == str(folders.a)
        error = await bench.client.refusal("new_session", workspace=longest + "/")
        assert error["message"] == f"workspace is too long: at most {PATH_CHARS_MAX}"


async def test_a_missing_folder_and_a_file_are_not_found_as_workspaces(folders: Folders) -> None:
    async with several_folders(folders) as bench:
        for named in (folders.a / "none", folders.a / "name.txt"):
            error = await bench.client.refusal("new_session", workspace=str(named))
            assert (error["code"], error["message"]) == ("command_rejected", "workspace_not_found")
            assert error["details"] == {"workspace": str(named)}
            assert error["cause"] == "there is no such folder"


async def test_a_workspace_outside_every_root_is_refused_with_the_list_of_roots(
    folders: Folders, tmp_path: Path
) -> None:
    (folders.a / "way_out").symlink_to(folders.outside)
    outside = (
        folders.outside,
        folders.a / "way_out",
        f"{folders.a}/../outside",
        tmp_path,  # contains every root
        f"{folders.a}x",
        folders.outside / "none",  # its existence is not revealed
        "/",
    )
    async with several_folders(folders) as bench:
        await bench.restrict()
        for named in outside:
            error = await bench.client.refusal("new_session", workspace=str(named))
            assert error["message"] == "workspace_not_allowed"
            assert error["details"] == {"workspace": str(named)}
            assert error["cause"] == (
                f"it must lie in {folders.home} or {folders.a} or {folders.b}; {ALLOW_MORE}"
            )


@pytest.mark.behaviour("the_user_may_work_in_any_folder")
@pytest.mark.behaviour("others_are_held_to_the_allowed_folders")
async def test_the_user_may_work_in_any_folder_and_others_stay_held_to_the_roots(
    folders: Folders,
) -> None:
    async with several_folders(folders) as bench:
        session = await bench.session(folders.outside)
        assert (await bench.call(session, "read", path="name.txt")).text == "this is outside"
        bridge = await bench.another()
        await bridge.restrict()
        # The other connection is as free as before, and this one is held in existing sessions too.
        assert await bench.session(folders.outside)
        payload = {"session_id": session, "text": "go"}
        run = await bench.client.request("prompt", wait=False, **payload)
        queued = await bench.client.request("follow_up", **payload)
        for command in ("prompt", "steer", "follow_up", "append_message"):
            error = await bridge.client.refusal(command, **payload)
            assert (command, error["message"]) == (command, "workspace_not_allowed")
        error = await bridge.client.refusal("edit_queued", **payload, input_id=queued["input_id"])
        assert error["message"] == "workspace_not_allowed"
        await bench.client.request("clear_queue", session_id=session)
        bench.provider.answer(says("done"))
        await bench.events.run(run["run_id"])
        error = await bridge.client.refusal("resume", session_id=session)
        assert error["message"] == "workspace_not_allowed"
        assert (await bridge.client.request("get_messages", session_id=session))["messages"]


@pytest.mark.behaviour("a_permission_for_good_belongs_to_a_workspace")
async def test_a_permission_for_good_holds_in_the_workspace_where_it_was_granted(
    folders: Folders,
) -> None:
    async with memory.open_store() as store:
        options: dict[str, Any] = {"store": store, "clock": FakeClock(), "mode": "ask"}
        async with several_folders(folders, **options) as bench:
            a, b = await bench.session(folders.a), await bench.session(folders.b)
            args = {"path": "new.txt", "content": "x"}
            write = {"tool": "write", "args": args}
            await bench.client.request("call_tool", session_id=a, **write)
            asked = (await bench.events.until("permission_requested"))["payload"]
            named = {key: asked[key] for key in ("tool_call_id", "attempt", "input_hash")}
            await bench.client.request("confirm_tool", **named, decision="always")
            await bench.events.until("tool_call_completed")
            rule = asked["rule"]
            for session, granted in ((a, [rule]), (b, [])):
                listed = await bench.client.request("list_permissions", session_id=session)
                assert listed["granted_everywhere"] == granted
            await bench.client.request("call_tool", session_id=b, **write)
            await bench.events.until("permission_requested", session_id=b)
        async with several_folders(folders, **options) as bench:
            another = await bench.session(folders.a)
            assert not (await bench.call(another, "write", **args)).is_error
            await bench.client.request("revoke_permission", rule=rule)
            listed = await bench.client.request("list_permissions", session_id=another)
            assert listed["granted_everywhere"] == []
            error = await bench.client.refusal("revoke_permission", rule=rule)
            assert error["message"] == "rule_not_granted"


@pytest.mark.behaviour("the_user_may_work_in_any_folder")
async def test_a_session_in_the_home_folder_begins_by_asking(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folders.a / "me"))
    (folders.a / "me" / "src").mkdir(parents=True)
    async with several_folders(folders) as bench:
        modes = {}
        for folder in (folders.a / "me", folders.a, folders.a / "me" / "src", folders.home):
            session = await bench.session(folder)
            state = await bench.client.request("get_state", session_id=session)
            modes[folder.name] = state["permission_mode"]
        assert modes == {"me": "ask", "a": "ask", "src": "yolo", "home": "yolo"}
        error = await bench.client.refusal("attach_session", workspace=str(folders.a))
        assert error["message"] == "workspace_not_allowed"


async def test_the_daemons_own_paths_and_their_parents_are_refused_as_workspaces(
    folders: Folders, tmp_path: Path
) -> None:
    (folders.state / "below").mkdir()
    link = folders.a / "to_state"
    link.symlink_to(folders.state)
    async with several_folders(folders, tmp_path) as bench:
        for named in (folders.state, folders.state / "below", link):
            error = await bench.client.refusal("new_session", workspace=str(named))
            assert error["message"] == "workspace_not_allowed"
            assert error["cause"] == "it lies in what belongs to the daemon"
        error = await bench.client.refusal("new_session", workspace=str(tmp_path))
        assert error["message"] == "workspace_not_allowed"
        assert error["cause"].startswith("it contains what belongs to the daemon")
        # Folders beside the daemon's own paths are allowed.
        assert await workspace_of(bench, await bench.session(folders.b)) == str(folders.b)


async def test_the_workdir_may_contain_the_daemons_own_paths_which_stay_unreadable(
    tmp_path: Path,
) -> None:
    folders = folders_in(tmp_path)
    inside = folders._replace(home=folders.home.parent)
    async with several_folders(inside, folders.a) as bench:
        for named in (None, inside.home):
            session = await bench.session(named)
            assert (await bench.call(session, "read", path="a/name.txt")).text == "this is a"
            assert (await bench.call(session, "read", path="state/name.txt")).is_error


async def test_a_session_of_an_older_log_works_in_the_workdir(folders: Folders) -> None:
    async with memory.open_store() as store:
        clock = FakeClock()
        old = events.SessionCreated(
            session_id="old", created_at=clock.now(), contract_version="tui-rpc-v1"
        )
        async with several_folders(folders, store=store, clock=clock) as bench:
            log = Log(store, bench.daemon.services.hub, clock)
            await log.submit(log.encode((old,))).wait_committed()
            assert await workspace_of(bench, "old") == str(folders.home)
            assert (await bench.call("old", "read", path="name.txt")).text == "this is home"
            branch = (await bench.client.request("branch_session", session_id="old"))["session_id"]
            created = await bench.events.until("session_created", session_id=branch)
            assert created["payload"]["workspace"] == str(folders.home)


# --- confinement -----------------------------------------------------------------------------

PATCHING = "--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-this is {name}\n+patched\n"


def file_calls(path: str, name: str) -> dict[str, dict[str, Any]]:
    """Return the arguments of each file tool for a file that contains the name."""
    return {
        "read": {"path": path},
        "ls": {"path": path.rpartition("/")[0] or "."},
        "find": {"pattern": "name.txt", "path": path.rpartition("/")[0] or "."},
        "grep": {"pattern": "this", "path": path},
        "edit": {"path": path, "oldText": "this", "newText": "this,"},
        "write": {"path": path, "content": f"this is {name}\n"},
        "patch": {"patch": PATCHING.format(path=path, name=name), "dryRun": True},
    }


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("tool", file_calls("x", "x"))
async def test_every_file_tool_works_in_the_workspace_of_its_session_and_nowhere_else(
    folders: Folders, tool: str
) -> None:
    async with several_folders(folders) as bench:
        session = await bench.session(folders.a)
        inside = await bench.call(session, tool, **file_calls("name.txt", "a")[tool])
        assert not inside.is_error, inside.text
        absolute = str(folders.a / "name.txt")
        if tool != "patch":
            ended = await bench.call(session, tool, **file_calls(absolute, "a")[tool])
            assert not ended.is_error, ended.text
        for path in ("../b/name.txt", str(folders.b / "name.txt"), str(folders.home / "name.txt")):
            ended = await bench.call(session, tool, **file_calls(path, "b")[tool])
            assert ended.is_error, path
            assert "this is" not in ended.text
    for folder in (folders.b, folders.home):
        assert (folder / "name.txt").read_text() == f"this is {folder.name}\n"


async def test_commands_start_in_the_workspace_of_their_session(folders: Folders) -> None:
    async with several_folders(folders) as bench:
        for folder in (folders.a, folders.b, folders.home):
            session = await bench.session(folder)
            assert (await bench.call(session, "bash", command="pwd -P")).text == str(folder)


async def test_git_uses_the_repository_of_its_sessions_workspace(folders: Folders) -> None:
    for folder in (folders.a, folders.b):
        await trio.run_process(["git", "init", "-q", "-b", f"of_{folder.name}", str(folder)])
    async with several_folders(folders, sandbox=TellingSandbox()) as bench:
        for folder in (folders.a, folders.b):
            session = await bench.session(folder)
            ended = await bench.call(session, "git", subcommand="status")
            assert f"of_{folder.name}" in ended.text
        elsewhere = await bench.call(await bench.session(), "git", subcommand="status")
        assert elsewhere.is_error


async def test_a_sandbox_request_has_the_sessions_workspace_and_hides_the_daemons_state(
    folders: Folders,
) -> None:
    sandbox = TellingSandbox()
    async with several_folders(folders, sandbox=sandbox) as bench:
        for folder in (folders.a, folders.b):
            await bench.call(await bench.session(folder), "bash", command="true")
    assert [request.workdir for request in sandbox.requests] == [folders.a, folders.b]
    assert all(folders.state in request.hidden for request in sandbox.requests)


async def test_attachment_paths_are_relative_to_the_workspace_and_cannot_leave_it(
    folders: Folders,
) -> None:
    async with several_folders(folders) as bench:
        session = await bench.session(folders.a)
        bench.provider.answer(says("seen"))
        await bench.client.request(
            "prompt",
            text="look",
            wait=False,
            session_id=session,
            attachments=[{"path": "name.txt", "media_type": "text/plain"}],
        )
        run = await bench.events.run()
        [attached] = [
            file
            for appended in of_type(run, "entry_appended")
            for file in appended["entry"].get("attachments", ())
        ]
        artifact = await bench.client.request("get_artifact", artifact_id=attached["artifact_id"])
        assert base64.b64decode(artifact["data"]) == b"this is a\n"
        for path in ("../b/name.txt", str(folders.home / "name.txt")):
            error = await bench.client.refusal(
                "prompt",
                text="look",
                session_id=session,
                attachments=[{"path": path, "media_type": "text/plain"}],
            )
            assert error["message"] == f"attachments[0].path: path_outside_workdir: {path}"


async def test_two_concurrent_sessions_each_work_in_their_own_workspace(folders: Folders) -> None:
    model, both = PlannedModel(), trio.Event()
    here: set[str] = set()

    def meets(name: str, then: Outcome) -> Outcome:
        """Return a model call that waits until that of the other session has begun."""

        async def play(receive: Receive) -> None:
            here.add(name)
            if len(here) == 2:
                both.set()
            await both.wait()
            await then(receive)

        return play

    async with several_folders(folders, provider=model) as bench:
        run_ids = set()
        for folder in (folders.a, folders.b):
            copies = calls(("bash", json.dumps({"command": "cat name.txt > seen.txt"})))
            writes = calls(("write", json.dumps({"path": "mine.txt", "content": folder.name})))
            model.plans[f"go {folder.name}"] += [meets(folder.name, copies), writes, says("done")]
            session = await bench.session(folder)
            accepted = await bench.client.request(
                "prompt", text=f"go {folder.name}", wait=False, session_id=session
            )
            run_ids.add(accepted["run_id"])
        ended = [(await bench.events.until("agent_end"))["payload"] for _ in run_ids]
        assert {end["run_id"] for end in ended} == run_ids
        assert {end["status"] for end in ended} == {"completed"}
    for folder in (folders.a, folders.b):
        assert (folder / "mine.txt").read_text() == folder.name
        assert (folder / "seen.txt").read_text() == f"this is {folder.name}\n"
    assert not (folders.home / "mine.txt").exists()


async def test_a_nested_workspace_does_not_give_access_to_the_outer_one(folders: Folders) -> None:
    inner = folders.a / "inner"
    inner.mkdir()
    (inner / "name.txt").write_text("this is inner\n")
    async with several_folders(folders, folders.a, inner) as bench:
        within = await bench.session(inner)
        assert (await bench.call(within, "read", path="name.txt")).text == "this is inner"
        assert (await bench.call(within, "read", path="../name.txt")).is_error
        around = await bench.session(folders.a)
        assert (await bench.call(around, "read", path="inner/name.txt")).text == "this is inner"


# --- inheritance -----------------------------------------------------------------------------


async def test_a_branch_works_in_the_workspace_of_its_parent(folders: Folders) -> None:
    async with several_folders(folders) as bench:
        session = await bench.session(folders.a)
        branched = await bench.client.request("branch_session", session_id=session)
        branch = branched["session_id"]
        created = await bench.events.until("session_created", session_id=branch)
        assert created["payload"]["workspace"] == str(folders.a)
        assert (await bench.call(branch, "read", path="name.txt")).text == "this is a"


async def test_a_task_works_in_the_workspace_of_its_parent(folders: Folders) -> None:
    model = PlannedModel()
    model.plans["go"] += [tasks({"prompt": "look"}), says("done")]
    model.plans["look"] += [calls(("read", '{"path": "name.txt"}')), says("seen")]
    async with several_folders(folders, provider=model) as bench:
        session = await bench.session(folders.a)
        accepted = await bench.client.request("prompt", text="go", wait=False, session_id=session)
        run = await bench.events.run(accepted["run_id"])
        [child] = [made for made in of_type(run, "session_created") if "origin" in made]
        assert child["workspace"] == str(folders.a)
        read = [end for end in of_type(run, "tool_execution_end") if end["tool_name"] == "read"]
        assert [end["result"] for end in read] == ["this is a"]


# --- cache -----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_unused_workspaces_are_evicted_and_one_in_use_is_not(
    folders: Folders,
) -> None:
    entered = trio.Event()

    async def waits(receive: Receive) -> None:
        entered.set()
        await trio.sleep_forever()

    async with several_folders(folders) as bench:
        workspaces = bench.daemon.services.workspaces
        busy, idle = await bench.session(folders.a), await bench.session(folders.b)
        bench.provider.answer(waits)
        await bench.client.request("prompt", text="go", wait=False, session_id=busy)
        with trio.fail_after(WAIT_SECONDS):
            await entered.wait()
        states = [(await bench.daemon.services.sessions.get(each)).state for each in (busy, idle)]
        held = workspaces.find_in_memory(states[0])
        assert held is not None
        assert workspaces.find_in_memory(states[1]) is not None
        for number in range(WORKSPACES_MAX):
            folder = folders.b / str(number)
            folder.mkdir()
            await workspaces.open_named(str(folder))
        assert workspaces.find_in_memory(states[0]) is held
        assert workspaces.find_in_memory(states[1]) is None
        assert await workspaces.of(states[0]) is held
        await bench.client.request("abort", session_id=busy)
        await bench.events.run()


async def test_a_daemon_with_one_folder_has_only_its_default_workspace(
    folders: Folders,
) -> None:
    async with memory_daemon(workdir=folders.home, provider=PlannedModel()) as daemon:
        client = await daemon.connect()
        for named in ({}, {"workspace": str(folders.home)}):
            session = (await client.request("new_session", **named))["session_id"]
            live = await daemon.services.sessions.get(session)
            assert (
                await daemon.services.workspaces.of(live.state)
                is daemon.services.workspaces.default
            )
        error = await client.refusal("new_session", workspace=str(folders.a))
        assert error["cause"] == f"it must lie in {folders.home}; {ALLOW_MORE}"


# --- concurrent changes ----------------------------------------------------------------------


async def test_a_call_uses_the_workspace_that_its_session_has_when_it_starts(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with several_folders(folders) as bench:
        session = await bench.session(folders.a)
        services, other = bench.daemon.services, await bench.another()
        acknowledged = services.calls.find_acknowledgement
        moved: list[str] = []

        async def moved_meanwhile(*args: Any) -> Any:
            if not moved:
                moved.append(session)
                await other.client.request(
                    "attach_session", session_id=session, workspace=str(folders.b)
                )
            return await acknowledged(*args)

        monkeypatch.setattr(services.calls, "find_acknowledgement", moved_meanwhile)
        assert (await bench.call(session, "read", path="name.txt")).text == "this is b"
