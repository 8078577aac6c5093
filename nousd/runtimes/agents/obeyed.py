"""Files of a workspace that agent programs load unasked: plugins, hooks, servers, instructions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

OPENCODE_FILES: Final = (".opencode", "opencode.json", "opencode.jsonc")

_FOLDERS: Final = (".opencode", ".claude", ".codex", ".gemini")

PROGRAM_FILES: Final = (*OPENCODE_FILES, *_FOLDERS[1:], ".mcp.json")
"""The files of all known programs that make them start code. They apply to a program of which only the
command line is known.
"""

INSTRUCTIONS: Final = ("AGENTS.md", "CLAUDE.md", "CLAUDE.local.md", "GEMINI.md")
"""The files that programs send to their models unasked; the daemon sends ``AGENTS.md``, too."""


class HiddenFiles(NamedTuple):
    """The files and folders that appear empty to a program.

    Args:
        code: paths that make the program start code. If one exists and cannot be hidden, the program is
            not started.
        texts: paths that the program would send to its model; hidden where that is possible.
        rendezvous: folders in which programs of this kind find each other. Each program gets its own
            where that is possible; a missing folder is created.
    """

    code: Sequence[Path] = ()
    texts: Sequence[Path] = ()
    rendezvous: Sequence[Path] = ()


def list_obeyed_paths(workdir: Path, names: Iterable[str]) -> Sequence[Path]:
    """Return the paths with these names in a folder and all its parents. The programs' folders in the
    user's HOME are left out, because they belong to the user.
    """
    home = Path.home()
    return [
        folder / name
        for name in names
        for folder in (workdir, *workdir.parents)
        if folder != home or name not in _FOLDERS
    ]
