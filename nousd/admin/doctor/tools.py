"""Checks for tool calls: valid rules, the supervisor and the sandbox."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import trio

from nousd.admin.doctor.examination import Check, Status, World
from nousd.errors import RuleInvalid
from nousd.machine.policy.rules import rules_in
from nousd.tools.environment import allowed_environment
from nousd.tools.process.supervisor import Ended, run_supervised
from nousd.tools.sandbox import filter_listener, landlock
from nousd.tools.sandbox.detect import Detector
from nousd.tools.sandbox.visible_paths import Chosen

PROGRAM_SECONDS: Final = 5.0
"""How long a program that does nothing may take."""

_OUTPUT_CHARS_MAX: Final = 200

_MEANS: Final = (
    "bash is supervised, but not confined; mode auto asks for every command, and git is refused"
)

_LESS: Final = (
    "commands can make no new files at the top of a workdir, and no commits, and have no sockets, not"
    " even among themselves"
)
"""What bubblewrap allows and Landlock does not."""

_INSTEAD: Final = "use bubblewrap, or allow what builds and unpacks to run unsandboxed"


def supervisor(_world: World) -> Iterator[Check]:
    """Check that a process can be started and supervised."""
    ended, output = _run([_true()])
    if ended.failure is None and ended.code == 0:
        yield Check("supervisor", "ok", "starts a process and sees it end")
    else:
        found = f"cannot run a process: {_reason(ended, output)}"
        yield Check(
            "supervisor", "failed", found, "bash does not work here; leave out --allow-exec"
        )


def sandbox(world: World) -> Iterator[Check]:
    """Check which sandbox works, and the reason why a better one does not."""
    findings = Detector(world.settings.sandbox, Chosen()).findings()
    against = [f"{finding.reason}" for finding in findings if finding.sandbox is None]
    advice = "; ".join(finding.advice for finding in findings if finding.advice)
    if not findings:
        found = f"the setting sandbox is none: {_MEANS}"
        yield Check("sandbox", "warning", found, "leave the setting at auto")
    elif findings[-1].sandbox is None:
        yield Check("sandbox", "warning", f"{'; '.join(against)}: {_MEANS}", advice)
    else:
        held = findings[-1].name
        found = "; ".join([f"{held} works", *against])
        less, unasked = "", None
        if held == landlock.Landlock.name:
            less, unasked = f": {_LESS}", filter_listener.why_not()
        if unasked is not None:
            less += f"; nor can they change modes and times: {unasked}"
            advice = "; ".join(filter(None, (advice, _INSTEAD)))
        status: Status = "warning" if against or unasked else "ok"
        yield Check("sandbox", status, f"{found}{less}", advice)


def _run(argv: Sequence[str]) -> tuple[Ended, str]:
    output = bytearray()

    async def run() -> Ended:
        return await run_supervised(
            argv,
            cwd=Path("/"),
            env=allowed_environment(),
            on_output=output.extend,
            timeout_seconds=PROGRAM_SECONDS,
        )

    ended = trio.run(run)
    return ended, " ".join(output.decode("utf-8", "replace").split())[:_OUTPUT_CHARS_MAX]


def _true() -> str:
    return shutil.which("true") or "/bin/true"


def _reason(ended: Ended, output: str) -> str:
    if ended.failure is not None:
        return ended.failure
    if ended.timed_out:
        return f"it did not end within {PROGRAM_SECONDS:g} seconds"
    return output or f"exit code {ended.code}"


def rules(world: World) -> Iterator[Check]:
    """Check that every rule is valid, and show the mode for calls that no rule decides."""
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
