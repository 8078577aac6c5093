"""Renders the normalized view for one reader: frames of the events that it reads, in log order.

A frame depends on a fold over the earlier events of its run. A reader that enters a run in the middle
rebuilds this fold from the log, so frames are the same wherever it begins. The reader keeps nothing but
such folds, and rebuilds those that it had to drop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec

from nousd.store.interface import Store
from nousd.store.records import EventFilter, StoredEvent
from nousd.views.normalized.fold import REMEMBERED_TYPES
from nousd.views.normalized.frames import events_of
from nousd.views.normalized.thread import Thread
from nousd.views.stream_position import StreamPosition

THREADS_MAX: Final = 64
"""Maximum runs and calls whose folds a reader keeps."""

_READ_EVENTS: Final = 1024
_READ_BYTES: Final = 256 * 1024

_encoder: Final = msgspec.json.Encoder()


class NormalizedReader:
    """Renders events of the log, each once and in order.

    Args:
        after: frames up to this position are left out.
    """

    def __init__(self, store: Store, after: StreamPosition) -> None:
        self._store = store
        self._after = after
        self._threads: OrderedDict[str, Thread] = OrderedDict()

    async def render(
        self, events: Iterable[StoredEvent], until: int, bytes_max: int
    ) -> tuple[list[bytes], int]:
        """Return frames, each a line without its LF, and the event number up to which they are complete.

        Args:
            until: the event number up to which ``events`` are complete.
            bytes_max: no further event is rendered once the frames reach this size.
        """
        lines: list[bytes] = []
        for event in events:
            thread = await self._thread_of(event)
            frames = [_encoder.encode(frame) for frame in events_of(event.line, thread)]
            if event.seq == self._after.seq:
                frames = frames[self._after.frames :]
            if event.type == "agent_end" and event.run_id is not None:
                self._threads.pop(event.run_id, None)
            lines += frames
            bytes_max -= sum(map(len, frames))
            if bytes_max <= 0:
                return lines, event.seq
        return lines, until

    async def _thread_of(self, event: StoredEvent) -> Thread:
        if event.run_id is None:
            return Thread()
        thread = self._threads.get(event.run_id)
        if thread is None:
            thread = Thread() if event.type == "agent_start" else await self._rebuild_thread(event)
            self._threads[event.run_id] = thread
            if len(self._threads) > THREADS_MAX:
                self._threads.popitem(last=False)
        else:
            self._threads.move_to_end(event.run_id)
        return thread

    async def _rebuild_thread(self, event: StoredEvent) -> Thread:
        """Return the state of a thread before one of its events, folded from the log."""
        thread = Thread()
        event_filter = EventFilter(run_id=event.run_id, types=REMEMBERED_TYPES)
        after = 0
        while page := await self._store.events_after(
            after, event_filter, until=event.seq - 1, limit=_READ_EVENTS, bytes_max=_READ_BYTES
        ):
            for earlier in page:
                events_of(earlier.line, thread)
            after = page[-1].seq
        return thread
