"""Which of many templates a path fits, found in one step for each of its segments.

A template such as ``/session/{id}/run`` has names in the place of segments that may be any. Nothing is
known here of what is found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Found(NamedTuple, Generic[T]):
    """What stands at a template, and the segments of the path that the template has names for."""

    value: T
    named: dict[str, str]


class _Match(NamedTuple, Generic[T]):
    """Where a template ends: what stands there, and the positions of its names."""

    value: T
    names: tuple[tuple[str, int], ...]


class _Node(Generic[T]):
    """Where the same first segments of some templates lead.

    ``words`` and ``any`` are the places behind a segment that is written out and one that has a name.
    """

    def __init__(self) -> None:
        self.words: dict[str, _Node[T]] = {}
        self.any: _Node[T] | None = None
        self.end: _Match[T] | None = None

    def behind(self, segment: str) -> _Node[T]:
        """Returns the place behind a segment of a template, which is made if it is not there."""
        if not _is_name(segment):
            return self.words.setdefault(segment, _Node())
        self.any = self.any or _Node()
        return self.any

    def find(self, segments: Sequence[str], position: int) -> _Match[T] | None:
        """Returns the end of the template that the segments fit from that position on; what is written
        out comes before a name, and no name is empty.
        """
        if position == len(segments):
            return self.end
        segment = segments[position]
        word = self.words.get(segment)
        end = None if word is None else word.find(segments, position + 1)
        if end is None and segment and self.any is not None:
            end = self.any.find(segments, position + 1)
        return end


class PathTable(Generic[T]):
    """Templates, and what stands at each."""

    def __init__(self, templates: Mapping[str, T]) -> None:
        self._root: _Node[T] = _Node()
        for template, value in templates.items():
            segments = template.split("/")
            place = self._root
            for segment in segments:
                place = place.behind(segment)
            names = [(name[1:-1], at) for at, name in enumerate(segments) if _is_name(name)]
            place.end = _Match(value, tuple(names))

    def find(self, path: str) -> Found[T] | None:
        """Returns what stands at the template that the path fits; None if it fits none."""
        segments = path.split("/")
        end = self._root.find(segments, 0)
        if end is None:
            return None
        return Found(end.value, {name: segments[position] for name, position in end.names})


def _is_name(segment: str) -> bool:
    return segment.startswith("{")
