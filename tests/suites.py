"""Which tests ``scripts/test`` runs by default, and which only ``scripts/test --all`` runs.

A test marked ``slow`` runs only in the long suite: kills, disk faults, attacks, floods, soaks, foreign
clients, heavy properties. ``slow(keep=N)`` keeps N of its cases in the default suite, spread evenly over
their order, so that each behaviour is still tested there. Which case is the first depends on the name of
the function: functions that share a parameter do not all keep the same value of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import settings

SUITES: Final = ("default", "rest", "all")
"""``default`` and ``rest`` have no test in common, and are ``all`` together."""


def examples(count: int) -> int:
    """Return how many examples Hypothesis tries of a property that has ``count`` in the long suite:
    in the default suite as many fewer as its profile says.
    """
    return max(1, count * settings().max_examples // 100)


def deselect(items: list[pytest.Item], suite: str) -> list[pytest.Item]:
    """Remove the items that the suite does not run, and return them."""
    if suite == "all":
        return []
    slow = slow_items(items)
    left_out = [item for item in items if (item in slow) == (suite == "default")]
    removed = set(left_out)
    items[:] = [item for item in items if item not in removed]
    return left_out


def slow_items(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Return the items that only the long suite runs."""
    families: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        marker = item.get_closest_marker("slow")
        if marker is not None:
            name = item.nodeid.partition("[")[0]
            families.setdefault((name, marker.kwargs.get("keep", 0)), []).append(item)
    slow: set[pytest.Item] = set()
    for (_, keep), family in families.items():
        slow.update(family)
        slow.difference_update(spread(family, keep))
    return slow


def spread(family: Sequence[pytest.Item], count: int) -> list[pytest.Item]:
    """Return ``count`` of the items, evenly from one of them on; all if there are no more."""
    size = len(family)
    if count >= size:
        return list(family)
    first = zlib.crc32(family[0].nodeid.partition("[")[0].encode()) % size
    return [family[(first + index * size // count) % size] for index in range(count)]
