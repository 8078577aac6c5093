"""Writes events to the log: cuts long texts, stamps, encodes, commits and publishes.

``submit`` never waits. When the store has committed a batch, three things happen in this order and in
one step of the event loop: the decided state becomes the state that clients see, the responses that
acknowledge it are queued, and the events go to the subscribers. So no client ever sees an event whose
effect another could not read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import trio

from nousd.daemon.clock import Clock
from nousd.daemon.eventlog.hub import Hub
from nousd.errors import StoreError
from nousd.machine.context import text_offload
from nousd.store.artifacts import Artifact
from nousd.store.interface import Store
from nousd.store.records import Batch, Record, StoredEvent
from nousd.wire.codec.envelope import encode_event_tail
from nousd.wire.events import EVENT_TYPES, Event, thread_of

_log = logging.getLogger(__name__)


class CommitHandle:
    """The commit of a batch: wait for it, or register a callback.

    ``is_settled`` is true once the outcome is known; ``failure`` is the reason why it was not
    committed. The handle does not hold the batch: it may be kept for long, and events are large.

    Args:
        on_wait: called when a task begins to wait; see ``Store.commit_now``.
    """

    # Every delta has a handle, and hardly any is ever waited for.
    __slots__ = ("_callbacks", "_on_wait", "_waited_for", "failure", "is_settled")

    def __init__(self, on_wait: Callable[[], None] = lambda: None) -> None:
        self._on_wait = on_wait
        self.failure: StoreError | None = None
        self.is_settled = False
        self._waited_for: trio.Event | None = None
        self._callbacks: list[Callable[[CommitHandle], None]] = []

    def when_resolved(self, callback: Callable[[CommitHandle], None]) -> None:
        """Call ``callback`` in commit order, before the events are published; at once if settled."""
        if self.is_settled:
            callback(self)
        else:
            self._callbacks.append(callback)

    async def wait_settled(self) -> None:
        """Wait until the outcome of the batch is known and all callbacks were called."""
        if self.is_settled:
            await trio.lowlevel.checkpoint()
            return
        if self._waited_for is None:
            self._waited_for = trio.Event()
            self._on_wait()
        await self._waited_for.wait()

    async def wait_committed(self) -> None:
        """Wait for the commit.

        Raises:
            StoreInDoubt: a restart will show whether the batch was committed.
            StoreError: it was not committed and never will be.
        """
        await self.wait_settled()
        if self.failure is not None:
            raise self.failure

    def settle(self, failure: StoreError | None = None) -> None:
        """Record the outcome of the batch. Called once, by the log."""
        self.failure = failure
        self.is_settled = True
        if self._waited_for is not None:
            self._waited_for.set()
        for callback in self._callbacks:
            callback(self)
        self._callbacks.clear()


def _make_settled_handle() -> CommitHandle:
    handle = CommitHandle()
    handle.settle()
    return handle


SETTLED: Final = _make_settled_handle()
"""A handle that is settled from the start."""


class EncodedEvents(msgspec.Struct, frozen=True):
    """Events as they will be logged; long texts become artifacts."""

    records: tuple[Record, ...]
    artifacts: tuple[Artifact, ...] = ()


class Log:
    """The daemon's only way to emit events."""

    def __init__(self, store: Store, hub: Hub, clock: Clock) -> None:
        self._store = store
        self._hub = hub
        self._clock = clock
        self.wait_room: Final = store.wait_room
        """Wait while too much is pending, so that memory stays bounded."""

    def encode(self, events: Sequence[Event]) -> EncodedEvents:
        """Cut long texts, stamp and encode events. Any error is raised here, before an event takes
        effect.
        """
        ts = self._clock.now()
        cut = text_offload.cut_long_texts(events)
        records = tuple(
            [
                Record(
                    EVENT_TYPES[type(event)],
                    event.session_id,
                    thread_of(event),
                    event,
                    encode_event_tail(event, ts),
                    ts,
                )
                for event in cut.events
            ]
        )
        if not cut.artifacts:
            return EncodedEvents(records)
        return EncodedEvents(
            records, tuple([Artifact(id, *whole) for id, whole in cut.artifacts.items()])
        )

    def submit(
        self,
        encoded: EncodedEvents,
        *,
        artifacts: Sequence[Artifact] = (),
        closes_run: bool = False,
    ) -> CommitHandle:
        """Submit encoded events, together and in order.

        Args:
            artifacts: further artifacts to which the events refer.
            closes_run: see ``Batch.closes_run``.
        """
        handle = CommitHandle(self._store.commit_now)

        def on_failed(failure: StoreError) -> None:
            _log.error("a commit failed: %s", failure)
            handle.settle(failure)

        def on_committed(stored: tuple[StoredEvent, ...]) -> None:
            handle.settle()
            self._hub.publish(stored)

        all_artifacts = (*encoded.artifacts, *artifacts)
        self._store.submit(
            Batch(encoded.records, on_committed, on_failed, all_artifacts, closes_run)
        )
        return handle
