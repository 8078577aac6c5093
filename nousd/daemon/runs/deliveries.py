"""The user's inputs on their way to an agent program, until there is proof that it has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from nousd.daemon.sessions.history import wholes_of
from nousd.daemon.sessions.live_session import LiveSession
from nousd.machine.context import text_offload
from nousd.machine.session import decisions
from nousd.machine.session.queue import Turn
from nousd.store.interface import Store
from nousd.wire.events import Event
from nousd.wire.events.base import TurnKey


class DeliveringRun(Protocol):
    """A run, as a delivery needs it."""

    live: LiveSession

    @property
    def where(self) -> TurnKey: ...

    async def stream(self, *decided: Event) -> None:
        """Submit events; wait for room in the log only."""

    def new_id(self, prefix: str) -> str:
        """Return a new id."""
        ...

    def now(self) -> str:
        """Return the time as RFC 3339 UTC."""
        ...


class InputDelivery:
    """Implements ``Delivery`` for inputs that are marked as being delivered.

    ``is_done``: they were delivered, or there are none.
    """

    def __init__(self, turn: Turn, run: DeliveringRun) -> None:
        self.kind = turn.kind
        self.text = turn.text
        self.attachments = turn.attachments
        self.inputs = turn.inputs
        self.is_done = not turn.inputs
        self._turn = turn
        self._run = run

    async def delivered(self) -> None:
        """See ``Delivery.delivered``."""
        # An abort that was accepted has given the inputs back.
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.is_done:
            return
        self.is_done = True
        run = self._run
        decided = decisions.deliver(
            run.live.state,
            self._turn,
            where=run.where,
            message_id=run.new_id("msg"),
            created_at=run.now(),
        )
        await run.stream(*decided)


async def whole_turn(store: Store, choose: Callable[[], Turn | None]) -> Turn | None:
    """Return the turn that ``choose`` returns, with whole texts; the caller may decide on it without
    another await.
    """
    wholes: dict[str, bytes | None] = {}
    while True:
        turn = choose()
        if turn is None:
            return None
        missing = text_offload.refs_in(turn.inputs).keys() - wholes
        if not missing:
            return Turn(turn.kind, text_offload.whole_inputs(turn.inputs, wholes))
        # What was accepted a moment ago may still be on its way to the disk.
        await store.flush()
        wholes |= await wholes_of(store, missing)
