"""Starts agent programs as guests, which reach neither our files nor our sockets.

The program is the user's own and may see what the user sees, its log-in among it. What is ours is
covered: the state folder with log and tokens, the sockets, the settings. So it can neither approve its
own calls, nor read keys of other programs. It has processes of its own, and dies with its first one.

A program with a HOME of ours sees that one of our folders, and not what agent programs keep in the
user's own. What it makes is private, also where nothing is covered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from nousd.errors import AgentFailed
from nousd.runtimes.agents.obeyed import HiddenFiles

_PRIVATE: Final = ("/bin/sh", "-c", 'umask 077 && exec "$0" "$@"')
"""Starts a program whose files only this user can read, unless it says otherwise itself."""

_NOTHING: Final = HiddenFiles()


class Guest(NamedTuple):
    """Starts agent programs.

    Args:
        bubblewrap: finds bubblewrap; None if there is none.
        covered: files and folders of ours; those that exist are empty for the program.
        of_the_user: files and folders in which agent programs keep log-ins of the user; covered as well
            for a program that has a HOME of ours.
    """

    bubblewrap: Callable[[], str | None]
    covered: tuple[Path, ...]
    of_the_user: tuple[Path, ...] = ()

    def argv(
        self,
        argv: Sequence[str],
        workdir: Path,
        *,
        has_tools: bool,
        home: Path | None = None,
        hidden: HiddenFiles = _NOTHING,
    ) -> list[str]:
        """Return the command line that starts a program as a guest.

        Without bubblewrap nothing is covered: then a program is started only if it has no tools of its
        own, with which it could look, and nothing is there by which it would start code.

        Args:
            home: the HOME of ours that it has.
            hidden: further files and folders.

        Raises:
            AgentFailed: it could look, or the workspace, or its own file, is in a covered folder.
        """
        inside = list(argv) if home is None else [*_PRIVATE, *argv]
        own = () if home is None else ("--bind", *2 * [str(home.resolve())])
        program = self.bubblewrap()
        obeyed = [path for path in hidden.code if path.exists()]
        if program is None:
            self._check_bare(has_tools=has_tools, obeyed=obeyed)
            return inside
        obeyed += hidden.texts
        ours = self.covered if home is None else (*self.covered, *self.of_the_user)
        there = {path.resolve() for path in (*ours, *obeyed) if path.exists()}
        covered = [path for path in there if there.isdisjoint(path.parents)]
        for path in covered:
            if workdir.is_relative_to(path):
                raise AgentFailed(f"the workspace is in {path}, which the agent must not see")
            if Path(argv[0]).resolve().is_relative_to(path):
                raise AgentFailed(f"its program is in {path}, which it must not see")
        return [
            *(program, "--dev-bind", "/", "/"),
            *(word for path in covered for word in _cover(path)),
            *(word for path in hidden.meeting if _is_made(path) for word in _cover(path)),
            # Root could take the covers away.
            *("--cap-drop", "ALL"),
            *own,
            *("--unshare-pid", "--proc", "/proc", "--die-with-parent", "--new-session"),
            *("--chdir", str(workdir), "--"),
            *inside,
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
    """Return whether a folder is there; if not, it is made. One that bubblewrap would make for its own
    mount could be listed by others, and programs may refuse it later.
    """
    with suppress(OSError):
        folder.mkdir(0o700, exist_ok=True)
    return folder.is_dir()


def _cover(path: Path) -> tuple[str, ...]:
    if path.is_dir():
        return "--perms", "0700", "--tmpfs", str(path)
    return "--ro-bind", "/dev/null", str(path)
