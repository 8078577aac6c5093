"""Which folders sessions may work in: those that really lie under a folder that the user allowed.

Paths only, with nothing looked at: whoever asks has resolved their links.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nousd.tools.fs.escape_paths import is_kernels


class Roots:
    """The allowed root directories, without the daemon's own.

    Args:
        allowed: each with all that is below; at least one.
        hidden: what no workspace may lie in or contain. The daemon's own workdir is the user's
            choice, and not judged here.
    """

    def __init__(self, allowed: Iterable[Path], hidden: Iterable[Path] = ()) -> None:
        self.allowed = tuple(dict.fromkeys(path.resolve() for path in allowed))
        self._hidden = tuple(
            spelling for path in hidden for spelling in (path.absolute(), path.resolve())
        )

    def fault(self, real: Path) -> str | None:
        """Return why a folder may not be a workspace, None if it may.

        Args:
            real: absolute, with its links resolved.
        """
        around = [root for root in self.allowed if real.is_relative_to(root)]
        if not around:
            return f"it must lie in {' or '.join(map(str, self.allowed))}"
        # Keys in the daemon's environment can be read there. /dev/shm is for whoever names it.
        if is_kernels(real) and not any(map(is_kernels, around)):
            return "it lies in what the kernel shows of programs and devices"
        for place in self._hidden:
            if real.is_relative_to(place):
                return "it lies in what belongs to the daemon"
            if place.is_relative_to(real):
                return "it contains what belongs to the daemon; name a folder further down"
        return None
