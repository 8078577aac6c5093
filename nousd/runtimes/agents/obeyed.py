"""Files of a workspace by which agent programs start plugins, hooks and servers that nobody chose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

OF_OPENCODE: Final = (".opencode", "opencode.json", "opencode.jsonc")

_FOLDERS: Final = (".opencode", ".claude", ".codex", ".gemini")

OF_ANY: Final = (*OF_OPENCODE, *_FOLDERS[1:], ".mcp.json")
"""Those of all programs that are known: for one of which only its command line is."""


def obeyed_in(workdir: Path, names: Iterable[str]) -> Sequence[Path]:
    """Return where such files would be: in a folder and in all above it. What lies in the home folder in
    folders of the programs is the user's own.
    """
    home = Path.home()
    return [
        folder / name
        for name in names
        for folder in (workdir, *workdir.parents)
        if folder != home or name not in _FOLDERS
    ]
