"""Runs in a partly trusted project replay identically, without the project."""

from __future__ import annotations

from pathlib import Path

from nousd.config.project_file import FILE_NAME
from nousd.daemon.policy.permissions import RulePermissions
from nousd.daemon.workspace.project import Project, reader
from tests.harness.daemon import of_type, only_workspace
from tests.replay.test_replay import check_all_same, daemon_with_log


async def test_warnings_and_rules_of_a_project_replay_without_its_file(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / FILE_NAME).parent.mkdir(parents=True)
    (root / FILE_NAME).write_text("provider = 'x'\n[permissions]\ndeny = ['read(a)']\n")
    workspaces = only_workspace(tmp_path, Project(root, reader(root)))
    permissions = RulePermissions("auto", (), workspaces)
    async with daemon_with_log(tmp_path, workspaces=workspaces, permissions=permissions) as opened:
        client, watch, rows = opened
        await client.request("prompt", text='[[tool read {"path":"a"}]][[then]][[say 1]]')
        await client.request("prompt", text="and again")
        run = await watch.run()
        assert of_type(run, "warning")[0]["code"] == "project_config_ignored"
        assert len(of_type(run, "tool_call_denied")) <= 1
        (root / FILE_NAME).unlink()
        await check_all_same(rows)
