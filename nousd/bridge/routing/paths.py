"""Matching a path against templates such as ``/session/{id}/run``, in one step per segment.

A name in braces matches any segment that is not empty. This module does not look at the values of
templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class RouteMatch(NamedTuple, Generic[T]):
    """The value of the template that matches, and the segments that its names match."""

    value: T
    named: dict[str, str]


class _Match(NamedTuple, Generic[T]):
    """The end of a template: its value, and the positions of its names."""

    value: T
    names: tuple[tuple[str, int], ...]


class _Node(Generic[T]):
    """A node of the tree of templates: the templates that share the same first segments.

    ``words`` are the next nodes by literal segment, ``any`` is the next node for a name.
    """

    def __init__(self) -> None:
        self.words: dict[str, _Node[T]] = {}
        self.any: _Node[T] | None = None
        self.end: _Match[T] | None = None

    def child(self, segment: str) -> _Node[T]:
        """Return the next node for a segment of a template; create it if it is missing."""
        if not _is_name(segment):
            return self.words.setdefault(segment, _Node())
        self.any = self.any or _Node()
        return self.any

    def find(self, segments: Sequence[str], position: int) -> _Match[T] | None:
        """Return the end of the template that matches the segments from that position on.

        A literal segment takes precedence over a name.
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
    """A set of path templates, each with a value."""

    def __init__(self, templates: Mapping[str, T]) -> None:
        self._root: _Node[T] = _Node()
        for template, value in templates.items():
            segments = template.split("/")
            node = self._root
            for segment in segments:
                node = node.child(segment)
            names = [(name[1:-1], at) for at, name in enumerate(segments) if _is_name(name)]
            node.end = _Match(value, tuple(names))

    def find(self, path: str) -> RouteMatch[T] | None:
        """Return the value of the template that matches a path; None if none does."""
        segments = path.split("/")
        end = self._root.find(segments, 0)
        if end is None:
            return None
        return RouteMatch(end.value, {name: segments[position] for name, position in end.names})


def _is_name(segment: str) -> bool:
    return segment.startswith("{")
