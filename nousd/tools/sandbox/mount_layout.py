"""The layout of directories that other programs can change meanwhile, for ``_bubblewrap_main``:
their nesting, and the denied paths in each.

Folders of the system are none of these, unless something in them is: bubblewrap takes them by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from nousd.tools.sandbox._bubblewrap_main import COVER, KEEP, ON_THE_WAY, STAND
from nousd.tools.sandbox.mount_placeholders import content_of
from nousd.tools.sandbox.visible_paths import Places, is_of_the_machine

Closed = dict[str, tuple[str, bytes | None, Any]]
"""Name -> how it is closed, what it says instead, what is closed below."""


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder that is laid out.

    Args:
        outer: the number of the one it lies in, -1 for none.
    """

    path: Path
    outer: int
    is_writable: bool
    closed: Closed

    @property
    def plan(self) -> tuple[str, int, bool, Closed]:
        return str(self.path), self.outer, self.is_writable, self.closed


def lay_out(places: Places, placeholders: Iterable[Path]) -> list[Root]:
    """Return the layout; a directory comes before those that it contains.

    Args:
        places: with every link resolved.
        placeholders: see ``MountPlaceholders.made``.
    """
    closings = [
        *((path, KEEP, None) for path in places.protected),
        *((path, COVER, None) for path in places.hidden),
        *((path, STAND, content_of(path)) for path in placeholders),
    ]
    roots: list[Root] = []
    for path, is_writable in _shown(places, [path for path, _, _ in closings]):
        outer = _innermost(path, roots)
        # What can be seen or written in any case is part of what it lies in.
        if outer < 0 or (is_writable and not roots[outer].is_writable):
            is_kept = is_writable and not any(path == closed for closed, _, _ in closings)
            roots.append(Root(path=path, outer=outer, is_writable=is_kept, closed={}))
    for path, how, content in closings:
        if (number := _innermost(path, roots)) >= 0:
            _insert(roots[number].closed, path.relative_to(roots[number].path).parts, how, content)
    return roots


def _shown(places: Places, closed: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield each path that is laid out, and whether it may be written, from above."""
    users = [path for path in places.readable if not is_of_the_machine(path)]
    inside = [*users, *places.writable, *closed]
    around = [
        path for path in places.readable if is_of_the_machine(path) and _contains(path, inside)
    ]
    shown = dict.fromkeys((*around, *users), False) | dict.fromkeys(places.writable, True)
    yield from sorted(shown.items(), key=lambda item: len(item[0].parts))


def _contains(folder: Path, paths: Collection[Path]) -> bool:
    return not folder.is_symlink() and any(path.is_relative_to(folder) for path in paths)


def _innermost(path: Path, roots: Sequence[Root]) -> int:
    containing = [number for number, root in enumerate(roots) if path.is_relative_to(root.path)]
    return max(containing, default=-1)


def _insert(closed: Closed, names: Sequence[str], how: str, content: bytes | None) -> None:
    for name in names[:-1]:
        above, _, closed = closed.setdefault(name, (ON_THE_WAY, None, {}))
        if above in (COVER, STAND):
            return
    if names:
        below = closed.get(names[-1], (ON_THE_WAY, None, {}))[2] if how == KEEP else {}
        closed[names[-1]] = (how, content, below)
