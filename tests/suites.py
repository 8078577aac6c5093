"""Which tests ``scripts/test`` runs by default, and which only ``scripts/test --all`` runs.

A test marked ``slow`` runs only in the long suite: kills, disk faults, attacks, floods, soaks, foreign
clients, heavy properties. ``slow(keep=N)`` keeps N of its cases in the default suite, spread evenly over
their order, so that each behaviour is still tested there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

SUITES: Final = ("default", "rest", "all")
"""``default`` and ``rest`` have no test in common, and are ``all`` together."""


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
    """Return ``count`` of the items, evenly from the first on; all if there are no more."""
    if count >= len(family):
        return list(family)
    return [family[index * len(family) // count] for index in range(count)]
