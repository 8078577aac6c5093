"""Commands in mode auto, with and without a sandbox, in a complete daemon."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nousd.config.settings import Settings
from nousd.daemon.policy.permissions import RulePermissions
from nousd.daemon.policy.sandboxing import detector
from nousd.errors import ConfigError
from nousd.machine.policy.rules import rules_of
from nousd.providers.interface import Finished, Receive, ToolCallPiece
from nousd.tools.sandbox.detect import SandboxName
from nousd.tools.sandbox.interface import FindSandbox, Request, SandboxedProcess, no_sandbox
from nousd.wire.objects.policy import SandboxFacts
from tests.daemon.scripted import ScriptedProvider, says
from tests.harness.daemon import Payload, memory_daemon, of_type


class OpenSandbox:
    """A sandbox that confines nothing but reports that it does."""

    name = "open"

    def __init__(self, *, has_network: bool = False) -> None:
        self.has_network = has_network

    def finds_closed(self, *_: object) -> bool:
        return True

    @contextmanager
    def hold(self, request: Request) -> Iterator[SandboxedProcess]:
        facts = SandboxFacts(
            backend=self.name, network=request.network, mounts=("/w:rw",), limits={"x": 1}
        )
        yield SandboxedProcess(argv=request.argv, env=request.env, facts=facts)


CLOSED: FindSandbox = OpenSandbox
ONLINE: FindSandbox = partial(OpenSandbox, has_network=True)


async def call(
    workdir: Path, sandbox: FindSandbox, tool: str = "bash", allow: str = "", **args: Any
) -> dict[str, Payload]:
    """Let a model call a tool while nobody can be asked; return the last event of each type."""

    async def asks(receive: Receive) -> None:
        await receive(ToolCallPiece("own", tool, json.dumps(args)))
        await receive(Finished("tool_use"))

    provider = ScriptedProvider()
    provider.answer(asks, says("done"))
    rules = rules_of("allow", [allow] if allow else [], "the test")
    async with memory_daemon(
        workdir=workdir,
        provider=provider,
        permissions=RulePermissions("auto", rules),
        sandbox=sandbox,
    ) as daemon:
        events, client = await daemon.watch(types="all"), await daemon.connect()
        await client.request("prompt", text="go", wait=False)
        run = await events.run()
    return {event["type"]: payload for event in run for payload in [event["payload"]]} | {
        "mode": next(
            each for each in of_type(run, "tool_call_policy_evaluated") if each["source"] == "mode"
        )
    }


@pytest.mark.behaviour("auto_asks_where_no_sandbox_holds")
async def test_auto_runs_a_command_in_the_sandbox_and_the_event_reports_the_sandbox(
    tmp_path: Path,
) -> None:
    outcome = await call(tmp_path, CLOSED, command="touch ran")
    assert outcome["mode"]["decision"] == "allow"
    completed = outcome["tool_call_completed"]
    assert completed["execution_env"] == "sandbox"
    assert completed["sandbox"]["backend"] == "open"
    assert completed["sandbox"]["limits"]["time_ms"] == 120_000
    assert (tmp_path / "ran").exists()


@pytest.mark.behaviour("auto_asks_where_no_sandbox_holds")
@pytest.mark.parametrize(
    ("sandbox", "more"),
    [
        (no_sandbox, {}),
        (ONLINE, {}),
        (CLOSED, {"network": True}),
        (CLOSED, {"unsandboxed": True}),
    ],
    ids=["no sandbox", "a network for all", "a network", "none wanted"],
)
async def test_auto_asks_about_a_command_without_a_sandbox_or_with_network(
    sandbox: FindSandbox, more: dict[str, Any], tmp_path: Path
) -> None:
    outcome = await call(tmp_path, sandbox, command="touch ran", **more)
    assert outcome["mode"]["decision"] == "ask"
    assert "tool_call_denied" in outcome
    assert "tool_call_started" not in outcome
    assert not (tmp_path / "ran").exists()


@pytest.mark.behaviour("files_left_for_programs_to_obey_are_reported")
@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])
async def test_a_warning_names_the_files_that_a_command_left_for_programs_to_obey(
    backend: SandboxName, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    find = detector(Settings(sandbox=backend), [tmp_path / "state"])
    if find() is None:
        pytest.skip(f"{backend} does not work here")
    told = await call(work, find, command="echo x > sub/.envrc")
    named = "sub/.envrc (direnv, when one enters the folder)"
    assert told["warning"]["code"] == "obeyed_files_left"
    assert named in told["warning"]["message"]
    assert named in told["tool_execution_end"]["result"]
    assert told["tool_call_completed"]["sandbox"]["left"] == [
        {"path": "sub/.envrc", "program": "direnv", "when": "enters the folder"}
    ]
    assert "warning" not in await call(work, find, command="cat sub/.envrc")


async def test_without_a_sandbox_a_rule_may_allow_a_command(tmp_path: Path) -> None:
    outcome = await call(tmp_path, no_sandbox, allow="bash(touch ran)", command="touch ran")
    assert outcome["tool_call_completed"]["execution_env"] == "host"
    assert "sandbox" not in outcome["tool_call_completed"]
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("more", [{"network": True}, {"unsandboxed": True}])
@pytest.mark.parametrize("rule", ["bash(touch ran)", "bash(=touch ran)", "bash(touch *)"])
async def test_an_allow_rule_does_not_let_a_command_leave_the_sandbox(
    rule: str, more: dict[str, Any], tmp_path: Path
) -> None:
    outcome = await call(tmp_path, CLOSED, allow=rule, command="touch ran", **more)
    assert "tool_call_denied" in outcome
    assert not (tmp_path / "ran").exists()


@pytest.mark.behaviour("git_runs_in_the_sandbox_only")
async def test_git_fails_without_a_sandbox(tmp_path: Path) -> None:
    outcome = await call(tmp_path, no_sandbox, tool="git", subcommand="status")
    assert outcome["tool_execution_end"]["is_error"]
    assert "no sandbox works on this machine" in outcome["tool_execution_end"]["result"]


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sandbox_paths", "sandbox_write_paths"])
def test_sandbox_paths_that_overlap_the_daemons_state_are_refused(
    name: str, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    for path in (tmp_path, state, state / "deeper", Path("/")):
        settings = replace(Settings(), **{name: (path,)})
        with pytest.raises(ConfigError, match=f"^{name}: "):
            detector(settings, [state])
    detector(replace(Settings(), **{name: (tmp_path / "beside",)}), [state])


def test_no_sandbox_is_detected_if_the_setting_is_none(tmp_path: Path) -> None:
    assert detector(Settings(sandbox="none"), [tmp_path])() is None
