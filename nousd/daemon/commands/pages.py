"""Cuts a list to a page that fits into one response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from nousd.wire.codec.envelope import encode_json
from nousd.wire.limits import PAGE_BYTES_MAX, PAGE_ROWS_MAX

T = TypeVar("T")


def page_of(items: Sequence[T]) -> tuple[T, ...]:
    """Return as many of the first items as fit into one response."""
    room = PAGE_BYTES_MAX
    page: list[T] = []
    for item in items[:PAGE_ROWS_MAX]:
        room -= len(encode_json(item))
        if room < 0:
            break
        page.append(item)
    return tuple(page)
