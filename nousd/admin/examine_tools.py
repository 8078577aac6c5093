"""What tools need to run programs: the supervisor, and a sandbox around them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import trio

from nousd.admin.examination import Check, World
from nousd.tools.environment import allowed_environment
from nousd.tools.supervisor import Ended, run_supervised

PROGRAM_SECONDS: Final = 5.0
"""How long a program that does nothing may take."""

_OUTPUT_CHARS_MAX: Final = 200

_NAMESPACES: Final = (
    (Path("/proc/sys/user/max_user_namespaces"), "0"),
    (Path("/proc/sys/kernel/unprivileged_userns_clone"), "0"),
    (Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"), "1"),
)
"""Kernel setting -> the value that forbids user namespaces."""

_MEANS: Final = "bash is supervised, but not confined"


def supervisor(_world: World) -> Iterator[Check]:
    """Whether a process can be started and held."""
    ended, output = _run([_true()])
    if ended.failure is None and ended.code == 0:
        yield Check("supervisor", "ok", "starts a process and sees it end")
    else:
        found = f"cannot run a process: {_reason(ended, output)}"
        yield Check(
            "supervisor", "failed", found, "bash does not work here; leave out --allow-exec"
        )


def sandbox(_world: World) -> Iterator[Check]:
    """Whether bubblewrap is there and may do what it does."""
    program = shutil.which("bwrap", path=allowed_environment()["PATH"])
    forbidding = [str(file) for file, value in _NAMESPACES if _content(file) == value]
    if program is None:
        yield Check(
            "sandbox", "warning", f"bubblewrap (bwrap) is not installed: {_MEANS}", "install it"
        )
        return
    ended, output = _run(
        [program, "--ro-bind", "/", "/", "--unshare-user", "--unshare-pid", _true()]
    )
    if ended.failure is None and ended.code == 0:
        yield Check("sandbox", "ok", f"{program} works")
        return
    advice = "allow user namespaces"
    if forbidding:
        advice = f"allow user namespaces: see {', '.join(forbidding)}"
    yield Check(
        "sandbox",
        "warning",
        f"{program} does not work ({_reason(ended, output)}): {_MEANS}",
        advice,
    )


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


def _content(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
