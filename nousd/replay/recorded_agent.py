"""A recorded runtime: carries out the turns of an agent program's run without the program.

The log contains the program's output, calls and usage as ordered events. They are logged again
unchanged, while the daemon delivers the inputs, folds the events, begins and ends the turns and closes
the run as it does for a program. Calls are not judged again, because their decisions are recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UnsetType

from nousd.replay.external_stimuli import make_broken
from nousd.replay.recorded import RecordedRun, is_outside
from nousd.replay.replay_driver import ReplayDriver
from nousd.runtimes.calls.host import RuntimeOpinion
from nousd.runtimes.calls.runtime_policy import NO_POLICY
from nousd.runtimes.interface import AgentHost, Delivery
from nousd.runtimes.native.loop import NativeRuntime
from nousd.wire import events
from nousd.wire.events import Event
from nousd.wire.objects.entries import MessageEntry, ToolCall
from nousd.wire.objects.runtimes import AuthFacts


class RecordedAgent:
    """Implements ``Runtime`` for one run.

    Args:
        driver: enters external input after each step.
    """

    consumes_on_delivery = True
    capabilities = NativeRuntime.capabilities
    models: tuple[str, ...] = ()

    def __init__(self, run: RecordedRun, driver: ReplayDriver) -> None:
        self.name = run.start.runtime
        self.version: str | UnsetType = run.start.runtime_version
        self._run = run
        self._driver = driver
        self._turns = _turns_of(run)
        self._steers: list[Delivery] = []

    def auth_facts(self, _namespace: str) -> AuthFacts:
        """See ``Runtime.auth_facts``."""
        return AuthFacts(instructions="a recording needs no program")

    def forget(self, session_id: str) -> None:
        """See ``Runtime.forget``."""

    async def opinion_of(self, _call: ToolCall) -> RuntimeOpinion:
        """See ``Runtime.opinion_of``."""
        return NO_POLICY

    async def run_turn(self, host: AgentHost) -> None:
        """See ``Runtime.run_turn``.

        Raises:
            RunFailed: the recorded run failed at this point.
        """
        turn = next(self._turns, _Turn(()))
        self._steers = []
        for event in turn.steps:
            await self._step(host, event)
        if not turn.is_whole:
            await self._driver.at_end_of_part()

    async def _step(self, host: AgentHost, event: Event) -> None:
        match event:
            case events.Error():
                raise make_broken(event, self._run).failure
            case events.QueueUpdate(change="delivering"):
                steer = await host.take_steer()
                if steer is not None:
                    self._steers.append(steer)
                await self._driver.after_step()
            case events.QueueUpdate():
                await self._confirm_delivery(host, event)
                await self._driver.after_step()
            case _:
                await host.stream(event)

    async def _confirm_delivery(self, host: AgentHost, consumed: events.QueueUpdate) -> None:
        ids = {queued.input_id for queued in consumed.inputs}
        for steer in self._steers:
            if ids == {queued.input_id for queued in steer.inputs}:
                await steer.confirm_delivery()
                return
        await host.confirm_delivery()


class _Turn(msgspec.Struct, frozen=True):
    """The steps of a turn that its runtime decided; ``is_whole`` if the turn ended normally."""

    steps: tuple[Event, ...]
    is_whole: bool = False


def _turns_of(run: RecordedRun) -> Iterator[_Turn]:
    steps: list[Event] = []
    is_open = False
    for event in run.events:
        if is_outside(event):
            continue
        if isinstance(event, events.TurnStart):
            is_open = True
        elif isinstance(event, events.TurnEnd | events.AgentEnd):
            if is_open:
                yield _Turn(_own_steps(steps), is_whole=isinstance(event, events.TurnEnd))
            steps, is_open = [], False
        elif is_open:
            steps.append(event)


def _own_steps(steps: Sequence[Event]) -> tuple[Event, ...]:
    """Return the steps without those of the daemon, which marks the inputs of a new turn as delivering
    and writes the user's messages.
    """
    is_marked = bool(steps) and isinstance(steps[0], events.QueueUpdate)
    if is_marked and steps[0].change == "delivering":  # type: ignore[attr-defined]
        steps = steps[1:]
    user_message_ids = {
        step.message_id
        for step in steps
        if isinstance(step, events.MessageStart) and step.role == "user"
    }
    return tuple(step for step in steps if _message_of(step) not in user_message_ids)


def _message_of(event: Event) -> str | None:
    if isinstance(event, events.MessageStart | events.MessageUpdate | events.MessageEnd):
        return event.message_id
    if isinstance(event, events.EntryAppended) and isinstance(event.entry, MessageEntry):
        return event.entry.id
    return None
