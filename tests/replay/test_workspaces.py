"""Runs in other workspaces replay identically, without the folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nousd.daemon.policy.permissions import RulePermissions
from nousd.daemon.workspace.settings import render_builtin_prompt, workspaces_of_settings
from nousd.runtimes.native.loop import NativeSettings
from tests.daemon.workspaces_bench import folders_in
from tests.harness.daemon import of_type
from tests.replay.test_replay import check_all_same, daemon_with_log


async def test_a_run_in_a_deleted_workspace_replays_identically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folders = folders_in(tmp_path)
    (folders.a / "AGENTS.md").write_text("Be like a.\n")
    workspaces = workspaces_of_settings(folders.settings(folders.a))
    permissions = RulePermissions("auto", (), workspaces)
    native = NativeSettings(system=render_builtin_prompt(folders.home))
    async with daemon_with_log(
        folders.home, workspaces=workspaces, permissions=permissions, native=native
    ) as (client, watch, rows):
        await client.request("new_session", workspace=str(folders.a))
        text = '[[tool read {"path":"name.txt"}]][[then]][[tool read {"path":"../b/name.txt"}]][[then]]'
        await client.request("prompt", text=f"{text}[[say done]]")
        run = await watch.run()
        results = [end["result"] for end in of_type(run, "tool_execution_end")]
        assert results[0] == "this is a"
        assert "path_outside_workdir" in results[1]
        given = of_type(run, "model_input")[0]
        told = {source["kind"]: source.get("path") for source in given["sources"]}
        assert told["project_instructions"] == str(folders.a / "AGENTS.md")
        shutil.rmtree(folders.a)
        await check_all_same(rows)
