"""Calls that may reach a denied file of which not every name could be found."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import pytest

from nousd.daemon.policy.permissions import RulePermissions
from nousd.daemon.workspace.workspaces import Workspace, Workspaces
from nousd.machine.policy.rules import rules_of
from nousd.tools.fs import hard_links
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.sandbox import deny_scan
from nousd.tools.sandbox.detect import Detector, SandboxName
from nousd.wire.objects.entries import PermissionMode
from tests.daemon.asking_bench import Bench, asking_daemon, calls, naming
from tests.harness.daemon import Event, of_type
from tests.tools.sandbox_bench import BACKENDS, CHOSEN

KEY = "topsecret"

pytestmark = pytest.mark.behaviour("what_a_search_may_have_missed_is_asked_about")


@cache
def found(name: SandboxName) -> Detector:
    detector = Detector(name, CHOSEN)
    if detector() is None:
        pytest.skip("; ".join(finding.reason for finding in detector.findings()))
    return detector


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".env").write_text(KEY)
    (tmp_path / "other").hardlink_to(tmp_path / ".env")
    (tmp_path / "sub" / "file").write_text("seen")
    (tmp_path / "sub" / "file2").hardlink_to(tmp_path / "sub" / "file")
    return tmp_path


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The searches for denied files do not reach everything."""
    monkeypatch.setattr(deny_scan, "ENTRIES_MAX", 4)
    monkeypatch.setattr(hard_links, "ENTRIES_MAX", 4)


@asynccontextmanager
async def daemon_in(
    root: Path,
    mode: PermissionMode = "auto",
    *,
    sandbox: SandboxName = "bubblewrap",
    confirms: bool = True,
    allow: tuple[str, ...] = (),
) -> AsyncIterator[Bench]:
    rules = (*rules_of("deny", ["read(.env)"], "a test"), *rules_of("allow", allow, "a test"))
    path_sandbox = PathSandbox(root, hard_links=True)
    async with asking_daemon(
        root,
        permissions=RulePermissions(mode, rules),
        sandbox=found(sandbox),
        workspaces=Workspaces(Workspace(path_sandbox=path_sandbox)),
        subscription={"types": "all", "confirms": confirms},
    ) as bench:
        yield bench


def bash(command: str) -> tuple[str, str]:
    return "bash", json.dumps({"command": command})


def result_in(events: list[Event]) -> str:
    return str(of_type(events, "tool_execution_end")[-1]["result"])


every_sandbox = pytest.mark.parametrize("sandbox", BACKENDS)


@pytest.mark.slow(keep=1)
@every_sandbox
@pytest.mark.usefixtures("large")
async def test_a_command_is_asked_about_where_the_walk_was_partial_and_runs_with_what_was_found_closed(
    root: Path, sandbox: SandboxName
) -> None:
    async with daemon_in(root, sandbox=sandbox) as bench:
        request = await bench.asked(calls(bash("cat sub/file .env")))
        assert request["reason"].startswith("rules deny reading in this workdir, and it is too")
        await bench.client.request("confirm_tool", **naming(request, "once"))
        completed = (await bench.events.until("tool_call_completed"))["payload"]
        end = (await bench.events.until("tool_execution_end"))["payload"]
    assert "seen" in end["result"]
    assert KEY not in end["result"]
    assert completed["sandbox"]["is_partial"]


@every_sandbox
async def test_a_command_is_not_asked_about_where_everything_was_found(
    root: Path, sandbox: SandboxName
) -> None:
    async with daemon_in(root, sandbox=sandbox) as bench:
        result = result_in(await bench.run(calls(bash("cat sub/file .env other"))))
    assert "seen" in result
    assert KEY not in result


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    ("mode", "reason"),
    [("auto", "no connected client can be asked"), ("yolo", "the mode yolo asks nobody")],
)
async def test_where_nobody_can_answer_such_a_command_is_denied(
    root: Path, mode: PermissionMode, reason: str
) -> None:
    async with daemon_in(root, mode, confirms=False) as bench:
        result = result_in(await bench.run(calls(bash("cat sub/file; touch ran"))))
    assert result.startswith("tool_error: tool_blocked")
    assert reason in result
    assert not (root / "ran").exists()


@pytest.mark.usefixtures("large")
async def test_only_a_permission_for_exactly_this_command_wins_over_a_partial_walk(
    root: Path,
) -> None:
    command = "cat sub/file"
    async with daemon_in(root, allow=(f"bash(={command})",)) as bench:
        assert "seen" in result_in(await bench.run(calls(bash(command))))
    async with daemon_in(root, allow=("bash(cat *)", "bash"), confirms=False) as bench:
        assert "tool_blocked" in result_in(await bench.run(calls(bash(command))))


@pytest.mark.usefixtures("large")
async def test_the_tool_git_is_asked_about_as_well_as_commands(root: Path) -> None:
    async with daemon_in(root) as bench:
        request = await bench.asked(calls(("git", '{"subcommand": "status"}')))
        assert request["reason"].startswith("rules deny reading")
        await bench.client.request("confirm_tool", **naming(request, "deny"))
        await bench.events.until("agent_end")


@pytest.mark.usefixtures("large")
async def test_a_file_with_unknown_names_is_asked_about_and_a_denied_one_stays_closed(
    root: Path,
) -> None:
    async with daemon_in(root) as bench:
        request = await bench.asked(calls(("read", '{"path": "sub/file2"}')))
        assert "too large for telling whether a rule closes" in request["reason"]
        await bench.client.request("confirm_tool", **naming(request, "once"))
        end = (await bench.events.until("tool_execution_end"))["payload"]
        assert end["result"] == "seen"
        await bench.events.until("agent_end")
        # Both names were found, so nothing is asked: it is refused.
        result = result_in(await bench.run(calls(("read", '{"path": "other"}'))))
    assert "another name (hard link)" in result
    assert KEY not in result


@pytest.mark.usefixtures("large")
async def test_a_file_with_one_name_is_read_without_a_question(root: Path) -> None:
    (root / "plain").write_text("plain")
    async with daemon_in(root) as bench:
        assert result_in(await bench.run(calls(("read", '{"path": "plain"}')))) == "plain"
