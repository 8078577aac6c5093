"""Starts agent programs as guests, which can reach neither nousd's files nor its sockets.

The program belongs to the user and may see the user's files, its log-in included. The files of nousd
are covered by empty ones: the state folder with log and tokens, the sockets, the settings. So the
program can neither approve its own calls nor read the keys of other programs. It has a process namespace
of its own, which ends with its first process.

A program with a private HOME (``spaces``) sees this folder of nousd, but not the log-ins that agent
programs keep in the user's HOME. The files that it creates are private, even where nothing is covered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from nousd.errors import AgentFailed
from nousd.runtimes.agents.obeyed import HiddenFiles

_UMASK_WRAPPER: Final = ("/bin/sh", "-c", 'umask 077 && exec "$0" "$@"')
"""Starts a program with a umask under which only this user can read its files."""

_NO_HIDDEN_FILES: Final = HiddenFiles()


class Guest(NamedTuple):
    """Starts agent programs.

    Args:
        bubblewrap: returns the path of bubblewrap; None if it is not installed.
        covered: nousd's files and folders; those that exist appear empty to the program.
        user_logins: files and folders in which agent programs keep the user's log-ins; covered as well
            for a program with a private HOME.
    """

    bubblewrap: Callable[[], str | None]
    covered: tuple[Path, ...]
    user_logins: tuple[Path, ...] = ()

    def argv(
        self,
        argv: Sequence[str],
        workdir: Path,
        *,
        has_tools: bool,
        home: Path | None = None,
        hidden: HiddenFiles = _NO_HIDDEN_FILES,
    ) -> list[str]:
        """Return the command line that starts a program as a guest.

        Without bubblewrap nothing can be covered: then a program is started only if it has no tools of
        its own, which could read nousd's files, and if no existing file would make it start code.

        Args:
            home: the program's private HOME; None if it uses the user's.
            hidden: further files and folders to cover.

        Raises:
            AgentFailed: the program must not start without covers, or the workspace or the program's own
                file is in a covered folder.
        """
        command = list(argv) if home is None else [*_UMASK_WRAPPER, *argv]
        bind_home = () if home is None else ("--bind", *2 * [str(home.resolve())])
        program = self.bubblewrap()
        obeyed = [path for path in hidden.code if path.exists()]
        if program is None:
            self._check_bare(has_tools=has_tools, obeyed=obeyed)
            return command
        obeyed += hidden.texts
        nousd_paths = self.covered if home is None else (*self.covered, *self.user_logins)
        existing = {path.resolve() for path in (*nousd_paths, *obeyed) if path.exists()}
        covered = [path for path in existing if existing.isdisjoint(path.parents)]
        for path in covered:
            if workdir.is_relative_to(path):
                raise AgentFailed(f"the workspace is in {path}, which the agent must not see")
            if Path(argv[0]).resolve().is_relative_to(path):
                raise AgentFailed(f"its program is in {path}, which it must not see")
        return [
            *(program, "--dev-bind", "/", "/"),
            *(word for path in covered for word in _cover(path)),
            *(word for path in hidden.rendezvous if _is_made(path) for word in _cover(path)),
            # With root's capabilities it could unmount the covers.
            *("--cap-drop", "ALL"),
            *bind_home,
            *("--unshare-pid", "--proc", "/proc", "--die-with-parent", "--new-session"),
            *("--chdir", str(workdir), "--"),
            *command,
        ]

    def _check_bare(self, *, has_tools: bool, obeyed: Sequence[Path]) -> None:
        if obeyed:
            raise AgentFailed(
                f"it would obey {obeyed[0]}, which cannot be hidden because there is no bubblewrap here",
                hint="install bubblewrap",
            )
        if has_tools and self.covered:
            raise AgentFailed(
                "it could read the daemon's own files with tools of its own, because there is no"
                " bubblewrap here",
                hint="install bubblewrap; or set runtime_tools = off, for a program that heeds it",
            )


def _is_made(folder: Path) -> bool:
    """Create a folder if it is missing; return whether it exists. A mount point that bubblewrap creates
    could be listed by other users, and programs might refuse it later.
    """
    with suppress(OSError):
        folder.mkdir(0o700, exist_ok=True)
    return folder.is_dir()


def _cover(path: Path) -> tuple[str, ...]:
    if path.is_dir():
        return "--perms", "0700", "--tmpfs", str(path)
    return "--ro-bind", "/dev/null", str(path)
