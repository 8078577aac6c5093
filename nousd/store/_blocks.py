"""Where the log looks for what belongs to a session or a run: once in each block of its numbers.

Why indices begin with a block is said in ``schema.m006_blocks_of_events``. SQL cannot skip from one
block to the next, so queries count them off: a recursive part yields one block after the other, and what
is looked for is joined to them in this order. So rows come in the order of their numbers, and a query
stops where its limit is reached; an ``ORDER BY`` would have SQLite read all of them first, and sort.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nousd.store.schema.m006_blocks_of_events import BLOCK, EVENTS_PER_BLOCK

BLOCKS: Final = f"""
    WITH RECURSIVE blocks (block) AS (
        SELECT :after / {EVENTS_PER_BLOCK}
        UNION ALL
        SELECT block + 1 FROM blocks WHERE block < :head / {EVENTS_PER_BLOCK}
    )
"""  # noqa: S608  the names are ours
"""Stands before a query over the blocks of the events behind ``:after``, up to ``:head``."""

EVENTS_OF_SESSION: Final = f"""
    blocks CROSS JOIN events INDEXED BY events_by_session
    WHERE {BLOCK} = block AND session_id = :session_id AND seq > :after AND seq <= :head
"""
EVENTS_OF_RUN: Final = f"""
    blocks CROSS JOIN events INDEXED BY events_by_run
    WHERE {BLOCK} = block AND run_id = :run_id AND seq > :after AND seq <= :head
"""
INPUTS_OF_SESSION: Final = f"""
    blocks CROSS JOIN inputs INDEXED BY inputs_by_session
    WHERE {BLOCK} = block AND session_id = :session_id AND seq > :after AND seq <= :head
"""
"""Behind ``FROM``: the rows of one session or run."""

INPUTS_PENDING: Final = f"""
    WITH RECURSIVE blocks (block) AS (
        SELECT min({BLOCK}) FROM inputs WHERE state = 'pending'
        UNION ALL
        SELECT (SELECT min({BLOCK}) FROM inputs WHERE state = 'pending' AND {BLOCK} > block)
        FROM blocks WHERE block IS NOT NULL
    )
    SELECT body FROM blocks CROSS JOIN inputs INDEXED BY inputs_pending
    WHERE {BLOCK} = block AND session_id = :session_id AND state = 'pending'
"""  # noqa: S608
"""The inputs of a session that wait, in order; of the blocks, those in which any input does."""


def blocks_down_from(seq: int) -> Iterator[int]:
    """Yields the block of an event and all before it, the newest first."""
    yield from range(seq // EVENTS_PER_BLOCK, -1, -1)
