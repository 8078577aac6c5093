"""Determines which sandbox works on this machine, by running a program in it.

An installed program, or a kernel feature, proves little: namespaces may be forbidden by a setting, by
the surrounding container or by a policy. So the first sandbox in which a program actually runs is used;
it is determined once per daemon, on first use.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Final, Literal

import msgspec

from nousd.errors import ToolError
from nousd.tools.environment import filter_environment
from nousd.tools.sandbox.interface import Request, Sandbox
from nousd.tools.sandbox.visible_paths import SandboxChoices

TRIAL_SECONDS: Final = 5.0
"""How long a program that does nothing may take."""

REASON_CHARS_MAX: Final = 200

SandboxName = Literal["auto", "bubblewrap", "landlock", "none"]

_NAMESPACES: Final = (
    (Path("/proc/sys/user/max_user_namespaces"), "0", "100000"),
    (Path("/proc/sys/kernel/unprivileged_userns_clone"), "0", "1"),
    (Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"), "1", "0"),
)
"""Kernel settings, each with the value that forbids namespaces to users and one that allows them."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of trying one backend.

    Args:
        sandbox: the usable sandbox; None if it does not work, for the given ``reason``.
        advice: what the user can do to make it work.
    """

    name: str
    sandbox: Sandbox | None = None
    reason: str = ""
    advice: str = ""


class Detector:
    """The ``FindSandbox`` of one daemon.

    Args:
        backend: the only acceptable backend; ``auto`` for the first that works.
    """

    def __init__(self, backend: SandboxName, chosen: SandboxChoices) -> None:
        self._backend = backend
        self._chosen = chosen
        self._lock = Lock()
        self._findings: tuple[Finding, ...] | None = None

    def __call__(self) -> Sandbox | None:
        """Return the sandbox; None if none works or none is wanted. Blocks, at the first call for
        seconds.
        """
        found = self.findings()
        return found[-1].sandbox if found else None

    def findings(self) -> tuple[Finding, ...]:
        """Return the result of each backend tried; only the last can be usable."""
        with self._lock:
            if self._findings is None:
                self._findings = tuple(self._try_backends())
            return self._findings

    def _try_backends(self) -> Iterator[Finding]:
        for name, find in _BACKENDS.items():
            if self._backend in ("auto", name):
                finding = find(self._chosen)
                yield finding
                if finding.sandbox is not None:
                    return


def _bubblewrap(chosen: SandboxChoices) -> Finding:
    import shutil

    from nousd.tools.sandbox import seccomp
    from nousd.tools.sandbox.bubblewrap import Bubblewrap

    program = shutil.which("bwrap", path=filter_environment()["PATH"])
    if program is None:
        reason = "bubblewrap (bwrap) is not installed"
        return Finding(name="bubblewrap", reason=reason, advice="apt install bubblewrap")
    if (reason_against := seccomp.why_not()) is not None:
        return Finding(name="bubblewrap", reason=reason_against)
    finding = _trial(Bubblewrap(Path(program).resolve(), chosen))
    if finding.sandbox is not None:
        return finding
    forbidding = [
        f"sysctl {'.'.join(file.parts[-2:])}={allowing}"
        for file, value, allowing in _NAMESPACES
        if _content(file) == value
    ]
    advice = f"allow user namespaces: {', '.join(forbidding)}" if forbidding else ""
    reason = f"{program} does not work: {finding.reason}"
    return Finding(
        name="bubblewrap", reason=reason, advice=advice or "allow user namespaces and mounts"
    )


def _landlock(chosen: SandboxChoices) -> Finding:
    from nousd.tools.sandbox import landlock

    reason = landlock.why_not()
    if reason is not None:
        return Finding(name="landlock", reason=reason, advice="use Linux 6.12 or later")
    return _trial(landlock.Landlock(chosen))


_BACKENDS: Final[dict[str, Callable[[SandboxChoices], Finding]]] = {
    "bubblewrap": _bubblewrap,
    "landlock": _landlock,
}
"""The backends in the order in which they are tried: the stronger one first."""


def _trial(sandbox: Sandbox) -> Finding:
    """Run a program that does nothing, in a directory made for it."""
    import tempfile

    try:
        with tempfile.TemporaryDirectory(prefix="nousd-") as folder:
            reason = _reason_against(sandbox, Path(folder).resolve())
    except subprocess.TimeoutExpired:
        reason = f"a program that does nothing did not end within {TRIAL_SECONDS:g} seconds"
    except (OSError, ToolError) as error:
        reason = str(error)
    working = sandbox if not reason else None
    return Finding(name=sandbox.name, sandbox=working, reason=reason[:REASON_CHARS_MAX])


def _reason_against(sandbox: Sandbox, folder: Path) -> str:
    import shutil

    program = shutil.which("true") or "/bin/true"
    request = Request(argv=[program], env=filter_environment(), workdir=folder)
    with sandbox.hold(request) as process:
        ended = subprocess.run(
            process.argv,
            env=dict(process.env),
            cwd=folder,
            pass_fds=process.descriptors,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TRIAL_SECONDS,
            check=False,
        )
    message = b" ".join(ended.stderr.split()).decode("utf-8", "replace")
    return "" if ended.returncode == 0 else message or f"exit code {ended.returncode}"


def _content(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
