"""Files of a workspace that agent programs obey by themselves: plugins, hooks, servers, instructions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

OF_OPENCODE: Final = (".opencode", "opencode.json", "opencode.jsonc")

_FOLDERS: Final = (".opencode", ".claude", ".codex", ".gemini")

OF_ANY: Final = (*OF_OPENCODE, *_FOLDERS[1:], ".mcp.json")
"""Those of all programs that are known, which start code that nobody chose: for a program of which only
its command line is known.
"""

INSTRUCTIONS: Final = ("AGENTS.md", "CLAUDE.md", "CLAUDE.local.md", "GEMINI.md")
"""What programs tell their models by themselves; the daemon tells ``AGENTS.md``, too."""


class HiddenFiles(NamedTuple):
    """The files and folders that are empty for a program, as far as they exist.

    Args:
        code: by which it would start code: where they cannot be hidden, it is not started.
        texts: which it would tell its model: hidden where that is possible.
        meeting: folders in which programs of its kind find each other: each has its own where that is
            possible, and one that does not exist is made.
    """

    code: Sequence[Path] = ()
    texts: Sequence[Path] = ()
    meeting: Sequence[Path] = ()


def list_obeyed_paths(workdir: Path, names: Iterable[str]) -> Sequence[Path]:
    """Return the paths of such files, in a folder and in all above it. Programs' folders in the home
    folder are left out: they are the user's own.
    """
    home = Path.home()
    return [
        folder / name
        for name in names
        for folder in (workdir, *workdir.parents)
        if folder != home or name not in _FOLDERS
    ]
