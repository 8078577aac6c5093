"""Workspace-dependent parts besides files: rules, trust, instructions, agents, prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nousd.config.project_file import FILE_NAME
from nousd.daemon.policy.permissions import RulePermissions
from nousd.daemon.workspace.settings import render_builtin_prompt, workspaces_of_settings
from nousd.machine.policy.rules import rules_of
from nousd.providers.interface import Receive
from nousd.runtimes.native.loop import NativeSettings
from nousd.store.memory import store as memory
from nousd.wire.codec.canonical_json import digest
from tests.daemon.asking_bench import calls
from tests.daemon.scripted import says
from tests.daemon.workspaces_bench import Bench, Folders, folders_in, several_folders
from tests.harness.daemon import FakeClock, Payload, of_type

pytestmark = pytest.mark.behaviour("a_project_counts_in_its_workspaces")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return folders_in(tmp_path)


def put(folder: Path, name: str, text: str) -> str:
    """Write a file and return its hash."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return digest(text.encode())


async def system_prompt_of(bench: Bench, session: str) -> tuple[str, list[Payload]]:
    """Return the system prompt of a run in a session, and its enabled sources."""
    run = await bench.run(session)
    [model_input] = of_type(run, "model_input")
    system: str = bench.provider.requests[-1].system
    return system, [source for source in model_input["sources"] if source["enabled"]]


# --- rules -----------------------------------------------------------------------------------


async def test_the_rules_of_a_project_apply_only_in_its_workspace(
    folders: Folders,
) -> None:
    put(folders.a, FILE_NAME, "[permissions]\ndeny = ['read(name.txt)']\n")
    put(folders.b, FILE_NAME, "[permissions]\nask = ['write(name.txt)']\n")
    async with several_folders(folders, mode="auto") as bench:
        a, b = await bench.session(folders.a), await bench.session(folders.b)
        home = await bench.session()
        assert (await bench.call(a, "read", path="name.txt")).decisions == {"deny"}
        assert (await bench.call(b, "read", path="name.txt")).text == "this is b"
        assert (await bench.call(home, "read", path="name.txt")).text == "this is home"
        listed = {}
        for session in (a, b, home):
            permissions = await bench.client.request("list_permissions", session_id=session)
            listed[session] = [rule["rule"] for rule in permissions["rules"]]
        assert listed == {a: ["read(name.txt)"], b: ["write(name.txt)"], home: []}


async def test_the_users_rules_apply_relative_to_each_workspace(folders: Folders) -> None:
    workspaces = workspaces_of_settings(folders.settings(folders.a, folders.b))
    rules = rules_of("deny", ["read(name.txt)"], "the settings")
    permissions = RulePermissions("auto", rules, workspaces)
    async with several_folders(folders, workspaces=workspaces, permissions=permissions) as bench:
        for folder in (folders.home, folders.a, folders.b):
            session = await bench.session(folder)
            assert (await bench.call(session, "read", path="name.txt")).decisions == {"deny"}
            absolute = await bench.call(session, "read", path=str(folder / "name.txt"))
            assert absolute.decisions == {"deny"}


async def test_the_rule_offered_with_an_approval_is_relative_to_the_workspace(
    folders: Folders,
) -> None:
    async with several_folders(folders, mode="ask") as bench:
        session = await bench.session(folders.a)
        accepted = await bench.client.request(
            "call_tool", session_id=session, tool="read", args={"path": str(folders.a / "name.txt")}
        )
        request = (await bench.events.until("permission_requested"))["payload"]
        assert request["tool_call_id"] == accepted["tool_call_id"]
        assert request["rule"] == "read(name.txt)"
        await bench.client.request("cancel_tool_call", tool_call_id=accepted["tool_call_id"])


# --- trust -----------------------------------------------------------------------------------

WIDENS = "permission_mode = 'yolo'\n[permissions]\nallow = ['fetch']\n"


async def mode_in(bench: Bench, folder: Path) -> str:
    session = await bench.session(folder)
    await bench.run(session)
    state = await bench.client.request("get_state", session_id=session)
    mode: str = state["permission_mode"]
    return mode


async def test_trust_applies_to_the_project_of_one_workspace_and_survives_a_restart(
    folders: Folders,
) -> None:
    for folder in (folders.a, folders.b):
        put(folder, FILE_NAME, WIDENS)
    async with memory.open_store() as store:
        options: dict[str, Any] = {"store": store, "clock": FakeClock(), "mode": "auto"}
        async with several_folders(folders, **options) as bench:
            listed = await bench.client.request("list_trust", workspace=str(folders.a))
            assert listed["root"] == str(folders.a)
            [file] = listed["files"]
            assert (file["path"], file["trusted"]) == (str(folders.a / FILE_NAME), False)
            assert (await bench.client.request("list_trust"))["files"] == []
            assert await mode_in(bench, folders.a) == "auto"
            named = {"workspace": str(folders.a), "hash": file["hash"]}
            assert (await bench.client.request("trust", **named))["path"] == file["path"]
            assert await mode_in(bench, folders.a) == "yolo"
            assert await mode_in(bench, folders.b) == "auto"
        async with several_folders(folders, **options) as bench:
            assert await mode_in(bench, folders.a) == "yolo"
            untrusted = await bench.client.request("untrust", workspace=str(folders.a))
            assert untrusted["path"] == file["path"]
            assert await mode_in(bench, folders.a) == "auto"


async def test_trust_commands_refuse_a_folder_that_cannot_be_a_workspace(folders: Folders) -> None:
    found = put(folders.outside, FILE_NAME, WIDENS)
    async with several_folders(folders) as bench:
        await bench.restrict()
        for command, payload in (("trust", {"hash": found}), ("untrust", {}), ("list_trust", {})):
            error = await bench.client.refusal(command, workspace=str(folders.outside), **payload)
            assert error["message"] == "workspace_not_allowed"
            error = await bench.client.refusal(command, workspace="a", **payload)
            assert error["message"] == "workspace must be an absolute path"


# --- prompts ---------------------------------------------------------------------------------


async def test_a_model_receives_only_the_instructions_of_its_own_project(folders: Folders) -> None:
    for folder in (folders.home, folders.a, folders.b):
        put(folder, "AGENTS.md", f"Be like {folder.name}.\n")
    async with several_folders(folders) as bench:
        for folder in (folders.a, folders.b, folders.home):
            system, sources = await system_prompt_of(bench, await bench.session(folder))
            assert [line for line in system.splitlines() if "Be like" in line] == [
                f"Be like {folder.name}."
            ]
            paths = [
                source["path"] for source in sources if source["kind"] == "project_instructions"
            ]
            assert paths == [str(folder / "AGENTS.md")]


async def test_instructions_apply_from_the_repository_root_down_to_the_workspace(
    folders: Folders,
) -> None:
    inner = folders.a / "inner"
    (folders.a / ".git").mkdir()
    put(folders.a, "AGENTS.md", "Be outer.\n")
    put(inner, "AGENTS.md", "Be inner.\n")
    async with several_folders(folders) as bench:
        system, _ = await system_prompt_of(bench, await bench.session(inner))
        assert system.index("Be outer.") < system.index("Be inner.")
        system, _ = await system_prompt_of(bench, await bench.session(folders.a))
        assert "Be inner." not in system


async def test_the_built_in_prompt_names_the_workspace_of_the_session(folders: Folders) -> None:
    native = NativeSettings(system=render_builtin_prompt(folders.home))
    async with several_folders(folders, native=native) as bench:
        hashes = {}
        for folder in (folders.home, folders.a, folders.b):
            system, sources = await system_prompt_of(bench, await bench.session(folder))
            assert f"The working folder is {folder};" in system
            [prompt] = [source for source in sources if source["kind"] == "system_prompt"]
            hashes[folder] = prompt["hash"]
            assert prompt["hash"] == digest(render_builtin_prompt(folder).encode())
        assert len(set(hashes.values())) == 3


async def test_the_users_own_prompt_is_the_same_in_every_workspace(
    folders: Folders, tmp_path: Path
) -> None:
    own = tmp_path / "prompt.md"
    own.write_text("Be brief.")
    settings = folders.settings(folders.a, folders.b)
    for system_prompt, text in ((own, "Be brief."), ("none", "")):
        workspaces = workspaces_of_settings(replace(settings, system_prompt=system_prompt))
        native = NativeSettings(system=text)
        async with several_folders(folders, workspaces=workspaces, native=native) as bench:
            for folder in (folders.home, folders.a):
                system, _ = await system_prompt_of(bench, await bench.session(folder))
                assert system == text


# --- agents ----------------------------------------------------------------------------------


async def test_the_agents_of_a_project_exist_only_in_its_workspace(
    folders: Folders,
) -> None:
    put(folders.a, ".nousd/agents/looker.md", "Look.")
    async with several_folders(folders) as bench:
        a, b = await bench.session(folders.a), await bench.session(folders.b)
        names = {}
        for session in (a, b):
            listed = await bench.client.request("list_agents", session_id=session)
            names[session] = [agent["name"] for agent in listed["agents"]]
        assert names == {a: ["looker"], b: []}

        asks = calls(("task", json.dumps({"agent": "looker", "prompt": "look"})))

        async def looks(receive: Receive) -> None:
            assert bench.provider.requests[-1].system.startswith("Look.")
            await says("seen")(receive)

        run = await bench.run(a, asks, looks, says("done"))
        [result] = of_type(run, "tool_execution_end")
        assert not result["is_error"]
        run = await bench.run(b, asks, says("done"))
        [result] = of_type(run, "tool_execution_end")
        assert "agent_not_found: looker" in result["result"]
