"""Checks for tool calls: the supervisor, the sandbox, the toolchains and the rules."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import trio

from nousd.admin.doctor.examination import Check, Status, World
from nousd.config.settings import SANDBOX_PATHS_MAX, Settings, variable_of
from nousd.errors import RuleInvalid
from nousd.machine.policy.rules import rules_in
from nousd.runtime_paths import locations
from nousd.tools.environment import filter_environment
from nousd.tools.process.supervisor import ProcessEnd, run_supervised
from nousd.tools.sandbox import filter_listener, landlock
from nousd.tools.sandbox.detect import Detector
from nousd.tools.sandbox.toolchains import Toolchain, find_toolchains
from nousd.tools.sandbox.visible_paths import PROGRAM_FOLDER, SYSTEM_FOLDERS, SandboxChoices

PROGRAM_SECONDS: Final = 5.0
"""Maximum time for a program that does nothing."""

_OUTPUT_CHARS_MAX: Final = 200

_UNCONFINED: Final = (
    "bash is supervised, but not confined; mode auto asks for every command, and git is refused"
)

_LANDLOCK_LIMITS: Final = "commands have no sockets, not even among themselves"
"""A restriction of Landlock that bubblewrap does not have."""

_LANDLOCK_ADVICE: Final = "use bubblewrap, or allow what builds and unpacks to run unsandboxed"


def supervisor(_world: World) -> Iterator[Check]:
    """Check that a process can be started and supervised."""
    process_end, output = _run([_true()])
    if process_end.failure is None and process_end.code == 0:
        yield Check("supervisor", "ok", "starts a process and sees it end")
    else:
        found = f"cannot run a process: {_reason(process_end, output)}"
        yield Check(
            "supervisor", "failed", found, "bash does not work here; leave out --allow-exec"
        )


def sandbox(world: World) -> Iterator[Check]:
    """Show which sandbox works, and why a better one does not."""
    findings = Detector(world.settings.sandbox, SandboxChoices()).findings()
    against = [f"{finding.reason}" for finding in findings if finding.sandbox is None]
    advice = "; ".join(finding.advice for finding in findings if finding.advice)
    if not findings:
        found = f"the setting sandbox is none: {_UNCONFINED}"
        yield Check("sandbox", "warning", found, "leave the setting at auto")
    elif findings[-1].sandbox is None:
        yield Check("sandbox", "warning", f"{'; '.join(against)}: {_UNCONFINED}", advice)
    else:
        sandbox_name = findings[-1].name
        found = "; ".join([f"{sandbox_name} works", *against])
        limits, unfiltered_reason = "", None
        if sandbox_name == landlock.Landlock.name:
            limits, unfiltered_reason = f": {_LANDLOCK_LIMITS}", filter_listener.why_not()
        if unfiltered_reason is not None:
            limits += (
                "; nor can they commit, make files at the top of the workdir, and change modes and"
                f" times: {unfiltered_reason}"
            )
            advice = "; ".join(filter(None, (advice, _LANDLOCK_ADVICE)))
        status: Status = "warning" if against or unfiltered_reason else "ok"
        yield Check("sandbox", status, f"{found}{limits}", advice)


def toolchains(world: World) -> Iterator[Check]:
    """Check that commands in the sandbox can read the toolchains below the home directory."""
    settings = world.settings
    env = filter_environment()
    home = Path(env.get("HOME") or Path.home())
    closed = (settings.state_dir, *settings.extension, *settings.key_programs)
    found = find_toolchains(home, env["PATH"], closed)
    if settings.sandbox == "none" or not found:
        reason = "the setting sandbox is none" if found else f"there are none below {home}"
        yield Check("toolchains", "skipped", reason)
        return
    workspaces = (settings.workdir, *settings.workspaces)
    configured = (*settings.sandbox_paths, *settings.sandbox_write_paths)
    shown = [path.resolve() for path in (*map(Path, SYSTEM_FOLDERS), *workspaces, *configured)]
    hidden = {each.name: paths for each in found if (paths := each.list_hidden_paths(shown))}
    visible = [each.name for each in found if each.name not in hidden]
    sentences = [f"commands in the sandbox see {', '.join(visible)}"] if visible else []
    if not hidden:
        yield Check("toolchains", "ok", "".join(sentences))
        return
    named = [_describe_toolchain(each, home) for each in found if each.name in hidden]
    sentences.append(f"commands in the sandbox do not see {'; '.join(named)}")
    more = [path for paths in hidden.values() for path in paths]
    yield Check("toolchains", "warning", "; ".join(sentences), _show_advice(settings, more, home))


def _describe_toolchain(toolchain: Toolchain, home: Path) -> str:
    """Return the name of a toolchain with its program directories."""
    programs = [path for path in toolchain.paths if path.name == PROGRAM_FOLDER]
    folders = ", ".join(_shorten_path(path, home) for path in programs or toolchain.paths)
    older = f", and {toolchain.left_out} older versions" if toolchain.left_out else ""
    return f"{toolchain.name} ({folders}{older})"


def _show_advice(settings: Settings, more: Sequence[Path], home: Path) -> str:
    """Return the advice to add these paths to the settings file."""
    paths = [*settings.sandbox_paths, *more]
    line = ", ".join(
        json.dumps(_shorten_path(path, home), ensure_ascii=False)
        for path in paths[:SANDBOX_PATHS_MAX]
    )
    file = settings.config_file or locations.default_config_file()
    advice = f"in {file}, before the first table: sandbox_paths = [{line}]"
    if (excess := len(paths) - SANDBOX_PATHS_MAX) > 0:
        advice += f" ({excess} paths more than the setting can hold are left out)"
    variable = variable_of("sandbox_paths")
    return f"{advice}; and unset {variable}" if variable in os.environ else advice


def _shorten_path(path: Path, home: Path) -> str:
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _run(argv: Sequence[str]) -> tuple[ProcessEnd, str]:
    output = bytearray()

    async def run() -> ProcessEnd:
        return await run_supervised(
            argv,
            cwd=Path("/"),
            env=filter_environment(),
            on_output=output.extend,
            timeout_seconds=PROGRAM_SECONDS,
        )

    process_end = trio.run(run)
    return process_end, " ".join(output.decode("utf-8", "replace").split())[:_OUTPUT_CHARS_MAX]


def _true() -> str:
    return shutil.which("true") or "/bin/true"


def _reason(process_end: ProcessEnd, output: str) -> str:
    if process_end.failure is not None:
        return process_end.failure
    if process_end.timed_out:
        return f"it did not end within {PROGRAM_SECONDS:g} seconds"
    return output or f"exit code {process_end.code}"


def rules(world: World) -> Iterator[Check]:
    """Check that every rule is valid, and show the mode that decides calls without a rule."""
    settings = world.settings
    table = settings.permissions
    try:
        found = rules_in(
            f"file {settings.config_file}", deny=table.deny, ask=table.ask, allow=table.allow
        )
    except RuleInvalid as error:
        yield Check("rules", "failed", str(error), "a daemon does not start with this")
        return
    counts = ", ".join(
        f"{sum(rule.decision == decision for rule in found)} {decision}"
        for decision in ("deny", "ask", "allow")
    )
    yield Check("rules", "ok", f"{counts}; where none decides the mode {settings.permission_mode}")
