"""Calls the hooks of extensions around one run.

A hook that fails is a warning in the run. ``run_loop`` decides when hooks are called. An extension may
act on the facts that it receives, so these are durable first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from nousd.extensions.hook_chain import Failure, Hooks, Instructions
from nousd.extensions.hooks import HookName, RunBeginning, RunEnded, TurnEnding, TurnStarted
from nousd.machine.context.model_input import ModelChoice
from nousd.machine.context.prompt_sections import SourceText, build_omitted_source, of_extension
from nousd.machine.context.text_offload import beginning
from nousd.machine.session.queue import Turn
from nousd.wire import events
from nousd.wire.events.base import TurnKey
from nousd.wire.limits import INSTRUCTIONS_BYTES_MAX

_log: Final = logging.getLogger(__name__)


class HookedRun(Protocol):
    """The interface of a run that its hooks need."""

    @property
    def where(self) -> TurnKey: ...

    @property
    def choice(self) -> ModelChoice: ...

    def extend_idle_deadline(self, seconds: float) -> None: ...

    async def wait_durable(self) -> None:
        """Wait until all logged events of the run are durable."""

    def warn(self, code: str, message: str) -> None:
        """Submit a warning."""
        ...


class RunHooks:
    """The hooks of one run."""

    def __init__(self, hooks: Hooks, run: HookedRun) -> None:
        self._hooks = hooks
        self._run = run

    async def before_run(self, *, resumes: bool) -> tuple[SourceText, ...]:
        """Return the prompt sections that extensions add."""
        if not self._hooks.has("before_run"):
            return ()
        choice, where = self._run.choice, self._run.where
        with self._quiet("before_run"):
            outcome = await self._hooks.before_run(
                RunBeginning(
                    session_id=where["session_id"],
                    run_id=where["run_id"],
                    kind="resume" if resumes else "prompt",
                    provider=choice.provider,
                    model=choice.model,
                )
            )
        self._warn(outcome.failures)
        return tuple(_sources(outcome.added))

    async def turn_start(self, turn: Turn) -> None:
        """Call the hooks for the start of a turn."""
        if self._hooks.has("turn_start"):
            event = TurnStarted(**self._run.where, kind=turn.kind, text=turn.text)
            await self._run.wait_durable()
            with self._quiet("turn_start"):
                self._warn(await self._hooks.tell("turn_start", event))

    async def turn_end(self) -> None:
        """Call the hooks before the end of a turn."""
        if self._hooks.has("turn_end"):
            await self._run.wait_durable()
            with self._quiet("turn_end"):
                self._warn(await self._hooks.tell("turn_end", TurnEnding(**self._run.where)))

    @contextmanager
    def _quiet(self, name: HookName) -> Iterator[None]:
        """Extend the idle deadline: hooks have their own time limit."""
        self._run.extend_idle_deadline(self._hooks.seconds_max(name))
        yield
        self._run.extend_idle_deadline(0.0)

    def _warn(self, failures: Iterable[Failure]) -> None:
        for failure in failures:
            self._run.warn(failure.code, beginning(failure.message))


async def tell_end(hooks: Hooks, end: events.AgentEnd) -> None:
    """Call the hooks for the end of a run. Their failures are logged, because the run has ended."""
    ended = RunEnded(
        session_id=end.session_id,
        run_id=end.run_id,
        status=end.status,
        error=end.error or "",
    )
    for failure in await hooks.tell("run_end", ended):
        _log.warning("%s: %s", failure.code, failure.message)


def _sources(added: Iterable[Instructions]) -> Iterator[SourceText]:
    """Yield the sections that fit, in order; their total size is bounded."""
    room = INSTRUCTIONS_BYTES_MAX
    for extension, text in added:
        section = of_extension(extension, text)
        size = len(section.text.encode())
        if size <= room:
            room -= size
            yield section
        else:
            yield build_omitted_source(extension)
