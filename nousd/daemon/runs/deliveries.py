"""Delivers the user's inputs to an agent program; they stay pending until the delivery is proven."""

from __future__ import annotations

from collections.abc import Callable

import trio

from nousd.daemon.runs.call_host import LiveCallHost
from nousd.daemon.sessions.history import wholes_of
from nousd.machine.context import text_offload
from nousd.machine.session import decisions, queue
from nousd.machine.session.lifecycle import LifecycleTracker
from nousd.machine.session.queue import Turn
from nousd.machine.session.settings import in_force
from nousd.store.interface import Store
from nousd.wire.objects.entries import Attachment


class InputDelivery:
    """Implements ``Delivery`` for inputs that are marked as being delivered.

    ``is_done`` is true once they were delivered, or if there are none.
    """

    def __init__(self, turn: Turn, run: DeliveringHost) -> None:
        self.kind = turn.kind
        self.text = turn.text
        self.attachments = turn.attachments
        self.inputs = turn.inputs
        self.is_done = not turn.inputs
        self._turn = turn
        self._run = run

    async def confirm_delivery(self) -> None:
        """See ``Delivery.confirm_delivery``."""
        # After an accepted abort, the inputs are no longer being delivered.
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.is_done:
            return
        self.is_done = True
        run = self._run
        decided = decisions.deliver(
            run.live.state,
            self._turn,
            turn_key=run.tracker.where,
            message_id=run.new_id("msg"),
            created_at=run.now(),
        )
        await run.stream(*decided)


async def whole_turn(store: Store, choose: Callable[[], Turn | None]) -> Turn | None:
    """Return the turn that ``choose`` returns, with full texts. Nothing is awaited after the last call
    of ``choose``.
    """
    wholes: dict[str, bytes | None] = {}
    while True:
        turn = choose()
        if turn is None:
            return None
        missing = text_offload.refs_in(turn.inputs).keys() - wholes
        if not missing:
            return Turn(turn.kind, text_offload.whole_inputs(turn.inputs, wholes))
        # Inputs that were just accepted may not be committed yet.
        await store.flush()
        wholes |= await wholes_of(store, missing)


class DeliveringHost(LiveCallHost):
    """The part of a run that delivers inputs to an agent program: the deliveries of ``AgentHost``, and
    the steers of ``TurnHost``. ``RunHost`` sets ``run_id``, ``tracker`` and ``steer_waiters``.
    """

    run_id: str
    tracker: LifecycleTracker
    steer_waiters: trio.lowlevel.ParkingLot
    delivery: InputDelivery | None = None
    """The delivery of the turn's inputs, if these are consumed when they are delivered."""
    has_stopped_asking = False
    """Whether the agent has ended its turn, so that answers of the user are no longer waited for."""

    def new_id(self, prefix: str) -> str:
        """See ``TurnHost.new_id``."""
        return self._services.clock.new_id(prefix)

    # --- steers ------------------------------------------------------------------------------

    def tell_steer(self) -> None:
        """See ``SessionRun.tell_steer``."""
        self.steer_waiters.unpark_all()

    def has_pending_steer(self) -> bool:
        """See ``TurnHost.has_pending_steer``."""
        state = self.live.state
        return queue.has_pending_steer(state.queue, self.run_id, state.delivering)

    async def wait_steer(self) -> None:
        """See ``TurnHost.wait_steer``."""
        await trio.lowlevel.checkpoint()
        while not self.has_pending_steer():
            await self.steer_waiters.park()

    # --- confirmed delivery ------------------------------------------------------------------

    def offer(self, turn: Turn) -> None:
        """Begin a turn whose inputs are consumed when they are delivered."""
        turn_id = str(self.tracker.turns + 1)
        self.decide(
            decisions.offer_turn(self.live.state, turn, run_id=self.run_id, turn_id=turn_id)
        )
        self.delivery = InputDelivery(turn, self)
        self.has_stopped_asking = False

    def stop_asking(self) -> None:
        """See ``AgentHost.stop_asking``."""
        self.has_stopped_asking = True
        self._services.skip_passed_over()

    @property
    def turn_text(self) -> str:
        """See ``AgentHost.turn_text``."""
        return self._offered_inputs.text

    @property
    def turn_attachments(self) -> tuple[Attachment, ...]:
        """See ``AgentHost.turn_attachments``."""
        return self._offered_inputs.attachments

    @property
    def turn_inputs(self) -> queue.Inputs:
        """See ``AgentHost.turn_inputs``."""
        return self._offered_inputs.inputs

    async def confirm_delivery(self) -> None:
        """See ``AgentHost.confirm_delivery``."""
        await self._offered_inputs.confirm_delivery()

    @property
    def _offered_inputs(self) -> InputDelivery:
        assert self.delivery is not None, "the runtime consumes its inputs before the turn"
        return self.delivery

    async def take_steer(self) -> InputDelivery | None:
        """See ``AgentHost.take_steer``."""
        steer = await whole_turn(self._services.store, self._next_steer)
        if steer is None:
            return None
        await self.commit(*decisions.take_steer(self.live.state, steer, self.run_id))
        return InputDelivery(steer, self)

    def _next_steer(self) -> Turn | None:
        state = self.live.state
        steering = in_force(state, self._services.sessions.defaults).steering_mode
        return queue.next_steer(
            state.queue, self.run_id, delivering=state.delivering, steering=steering
        )
