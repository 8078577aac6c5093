"""The lives of agent programs: at most one for each session, kept warm between turns.

A life ends with its program or the daemon, when its parameters change, when it has been unused for a
while, and when another life needs its place. Its process runs under nousd's supervisor, so nothing of it
outlives the daemon.

A life runs the adapter's code, which may have faults. An unexpected error ends this life and nothing
else: the error boundary is around the task that holds the program (``_live``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import trio

from nousd.errors import AgentFailed, NousdError
from nousd.runtimes.agents.boundary import Contain, adapter_fault
from nousd.runtimes.agents.interface import Agent, AgentCall, AgentLife, Resume, Start
from nousd.runtimes.agents.programs import Programs
from nousd.runtimes.agents.raw_lines import CURRENT_LINE
from nousd.runtimes.agents.time_limits import BEGIN_SECONDS, IDLE_SECONDS, PLACE_SECONDS
from nousd.tools.process.line_conversation import LineBounds, LineConversation

LIVES_MAX: Final = 16
"""Maximum number of programs of one runtime at a time; the one that is unused for longest gives way."""

_BOUNDS: Final = LineBounds(bytes_max=16 * 1024 * 1024, values_max=200_000, per_second=10_000)
"""A program sends a line for each piece of a text; a fast model writes thousands of them in a second."""


class _KeptLife:
    """A life that serves a session. It is in use from its beginning until ``Lives.rest``."""

    def __init__(self, life: AgentLife, start: Start, scope: trio.CancelScope) -> None:
        self.life, self.start, self.scope = life, start, scope
        self.is_in_use = True
        self.unused_since = 0.0


class Lives:
    """The running programs of one runtime.

    Args:
        nursery: the daemon's nursery, in which a task of its own holds each program.
        contain: the error boundary around these tasks.
        record_outside: logs a session's call that was made while no run is open.
        redact: removes secrets from the programs' standard error.
    """

    def __init__(
        self,
        agent: Agent,
        nursery: trio.Nursery,
        programs: Programs,
        *,
        contain: Contain,
        record_outside: Callable[[str, AgentCall], Awaitable[None]],
        redact: Callable[[str], str],
    ) -> None:
        self._agent = agent
        self._nursery = nursery
        self._programs = programs
        self._contain = contain
        self._record_outside = record_outside
        self._redact = redact
        self._kept: dict[str, _KeptLife] = {}
        self._places = trio.Semaphore(LIVES_MAX)
        """A program holds its place until its process has ended."""
        self._starting_count = 0

    def warm(self, session_id: str, start: Start) -> AgentLife | None:
        """Return the session's life, now in use, if it was started with these parameters; else None. A
        life with other parameters is ended.
        """
        kept = self._kept.get(session_id)
        if kept is None or kept.life.failure is not None:
            return None
        if kept.start != start:
            self.drop(session_id)
            return None
        kept.is_in_use = True
        return kept.life

    async def begin(
        self,
        session_id: str,
        start: Start,
        resume: Resume,
        *,
        on_wait: Callable[[str], Awaitable[None]],
    ) -> AgentLife:
        """Start a program for a session that has none; return its life, now in use. While all places are
        taken by busy programs, wait for one, in the order of the calls.

        Args:
            on_wait: receives the reason for a wait before the wait begins.

        Raises:
            AgentFailed: the program cannot be started or used, or no place became free in time.
        """
        self._starting_count += 1
        try:
            if self._are_too_many and not self._close_unused():
                busy = f"all {LIVES_MAX} programs of {self._agent.name} are busy"
                await on_wait(
                    f"{busy}; a free place is waited for, at most {PLACE_SECONDS:g} seconds"
                )
            life: AgentLife | AgentFailed = await self._nursery.start(
                self._live, session_id, start, resume
            )
        finally:
            self._starting_count -= 1
        failure = life if isinstance(life, AgentFailed) else life.failure
        if failure is not None:
            raise failure
        assert isinstance(life, AgentLife)
        return life

    def rest(self, session_id: str) -> None:
        """Mark the life that serves a session as unused."""
        kept = self._kept.get(session_id)
        if kept is not None:
            kept.is_in_use, kept.unused_since = False, trio.current_time()
            if self._are_too_many:
                self._close_unused()

    def drop(self, session_id: str) -> None:
        """End the life that serves a session, if there is one."""
        kept = self._kept.pop(session_id, None)
        if kept is not None:
            kept.life.end(AgentFailed("it was ended"))
            kept.scope.cancel()

    @property
    def _are_too_many(self) -> bool:
        """Whether more lives exist or begin than there are places."""
        return len(self._kept) + self._starting_count > LIVES_MAX

    def _close_unused(self) -> bool:
        """End the life that is unused for longest; return whether there was one."""
        unused = [session_id for session_id, kept in self._kept.items() if not kept.is_in_use]
        if unused:
            self.drop(min(unused, key=lambda session_id: self._kept[session_id].unused_since))
        return bool(unused)

    async def _live(
        self,
        session_id: str,
        start: Start,
        resume: Resume,
        *,
        task_status: trio.TaskStatus[AgentLife | AgentFailed],
    ) -> None:
        """Hold a program until its life is over; report the life, or the failure to begin it."""
        started: list[AgentLife] = []

        def on_started(life: AgentLife) -> None:
            started.append(life)
            task_status.started(life)

        with trio.move_on_after(PLACE_SECONDS) as limit:
            await self._places.acquire()
        if limit.cancelled_caught:
            task_status.started(_build_no_place_error())
            return
        try:
            hold = partial(self._hold, session_id, start, resume, on_started)
            outcome = await self._contain(hold, f"the adapter of {self._agent.name}")
        finally:
            self._places.release()
        if isinstance(outcome, NousdError):
            failure = outcome if isinstance(outcome, AgentFailed) else adapter_fault()
            if started:
                started[0].end(failure)
            else:
                task_status.started(failure)

    async def _hold(
        self, session_id: str, start: Start, resume: Resume, on_started: Callable[[AgentLife], None]
    ) -> None:
        """Hold a program until its life is over; report the life once it is ready.

        Raises:
            AgentFailed: the program cannot be started.
        """
        try:
            with trio.CancelScope() as scope:
                async with self._programs.run_program(start, resume) as (process, variables):
                    conversation = LineConversation(
                        f"agent {self._agent.name}",
                        process,
                        _BOUNDS,
                        AgentFailed,
                        self._redact,
                        tells_code=True,
                    )
                    async with trio.open_nursery() as nursery:
                        life = self._life(conversation, start, resume, nursery, variables)
                        life.record_outside = partial(self._record_outside, session_id)
                        await _begin(life)
                        kept = self._kept[session_id] = _KeptLife(life, start, scope)
                        try:
                            on_started(life)
                            await _until_over(kept)
                            life.end(AgentFailed("it was ended"))
                        finally:
                            self._forget(session_id, kept)
                        nursery.cancel_scope.cancel()
                    await conversation.dismiss()
        except OSError as error:
            raise AgentFailed(f"it could not be started: {error.strerror}") from error

    def _life(
        self,
        conversation: LineConversation,
        start: Start,
        resume: Resume,
        nursery: trio.Nursery,
        variables: Mapping[str, str],
    ) -> AgentLife:
        """Return the life of a running program, and start the tasks that read the program's output."""

        async def write(line: bytes) -> None:
            try:
                await conversation.write(line)
            except AgentFailed as failure:
                # The caller may be a background task of the adapter, where the failure would be lost.
                life.end(failure)

        life = self._agent.life(start, resume, write, nursery, variables)
        nursery.start_soon(conversation.read_stderr)
        nursery.start_soon(_read, conversation, life)
        return life

    def _forget(self, session_id: str, kept: _KeptLife) -> None:
        if self._kept.get(session_id) is kept:
            del self._kept[session_id]


def _build_no_place_error() -> AgentFailed:
    return AgentFailed(
        f"it was not started: {LIVES_MAX} others are busy, and none of them ended its turn within"
        f" {PLACE_SECONDS:g} seconds",
        hint="send the message again when another run has ended, or abort one",
    )


async def _until_over(kept: _KeptLife) -> None:
    """Wait until a life is over, or has been unused for ``IDLE_SECONDS``."""
    while not kept.life.over.is_set():
        now = trio.current_time()
        deadline = (now if kept.is_in_use else kept.unused_since) + IDLE_SECONDS
        if now >= deadline:
            return
        with trio.move_on_at(deadline):
            await kept.life.over.wait()


async def _read(conversation: LineConversation, life: AgentLife) -> None:
    async def take(line: bytes) -> None:
        token = CURRENT_LINE.set(line)
        try:
            await life.take(line)
        finally:
            CURRENT_LINE.reset(token)

    try:
        await conversation.read(take)
    except AgentFailed as failure:
        life.end(failure)


async def _begin(life: AgentLife) -> None:
    with trio.move_on_after(BEGIN_SECONDS) as limit:
        try:
            await life.begin()
        except AgentFailed as failure:
            life.end(failure)
    if limit.cancelled_caught:
        life.end(AgentFailed(f"it was not ready within {BEGIN_SECONDS:g} seconds"))
