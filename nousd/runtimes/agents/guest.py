"""Starts agent programs as guests, which reach neither our files nor our sockets.

The program is the user's own and may see what the user sees, its log-in among it. What is ours is
covered: the state folder with log and tokens, the sockets, the settings. So it can neither approve its
own calls, nor read keys of other programs. It has processes of its own, and dies with its first one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from nousd.errors import AgentFailed


class Guest(NamedTuple):
    """Starts agent programs.

    Args:
        bubblewrap: finds bubblewrap; None if there is none.
        covered: files and folders of ours; those that exist are empty for the program.
    """

    bubblewrap: Callable[[], str | None]
    covered: tuple[Path, ...]

    def argv(self, argv: Sequence[str], workdir: Path, *, has_tools: bool) -> list[str]:
        """Return the command line that starts a program as a guest.

        Without bubblewrap nothing is covered: then a program is started only if it has no tools of its
        own, with which it could look.

        Raises:
            AgentFailed: it could look, or the workspace is in a covered folder.
        """
        program = self.bubblewrap()
        if program is None:
            if not has_tools or not self.covered:
                return list(argv)
            raise AgentFailed(
                "it could read the daemon's own files with tools of its own, because there is no"
                " bubblewrap here",
                hint="install bubblewrap; or set runtime_tools = off, for a program that heeds it",
            )
        there = {path.resolve() for path in self.covered if path.exists()}
        covered = [path for path in there if there.isdisjoint(path.parents)]
        for path in covered:
            if workdir.is_relative_to(path):
                raise AgentFailed(f"the workspace is in {path}, which the agent must not see")
        return [
            *(program, "--dev-bind", "/", "/"),
            *(word for path in covered for word in _cover(path)),
            # Root could take the covers away.
            *("--cap-drop", "ALL"),
            *("--unshare-pid", "--proc", "/proc", "--die-with-parent", "--new-session"),
            *("--chdir", str(workdir), "--"),
            *argv,
        ]


def _cover(path: Path) -> tuple[str, ...]:
    if path.is_dir():
        return "--tmpfs", str(path)
    return "--ro-bind", "/dev/null", str(path)
