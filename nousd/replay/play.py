"""Plays one run: restores its session, builds a daemon around it, and carries out the run.

The daemon is the real one, with a log in memory. Only its outside is replayed: the model, the tools and
the clients.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import trio
from msgspec import UNSET

from nousd.daemon.app import DaemonDeps, open_services
from nousd.daemon.eventlog.hub import Hub
from nousd.daemon.eventlog.log import Log
from nousd.daemon.eventlog.log_walk import event_of, for_each_event
from nousd.daemon.runs.run_host import RunHost
from nousd.daemon.runs.runtimes import MakeRuntime
from nousd.daemon.services import Services
from nousd.daemon.workspace.session_memo import SessionMemo
from nousd.daemon.workspace.workspaces import Workspace, Workspaces
from nousd.errors import CommandRejected, NotReplayable
from nousd.machine.context.model_input import ModelChoice
from nousd.machine.context.prompt_sections import SourceText
from nousd.machine.session import decisions
from nousd.machine.session.settings import LASTING, SHARED
from nousd.machine.session.state import request_of
from nousd.providers.interface import Provider
from nousd.providers.models.catalog import ModelFacts, Models
from nousd.replay.external_stimuli import Broken, ExternalStimuli, find_external_stimuli
from nousd.replay.parts import RecordedModel, RecordedProject, ToolsAtCall, tools_of
from nousd.replay.recorded import NEXT_STEP, RecordedRun, is_outside
from nousd.replay.recorded_agent import RecordedAgent
from nousd.replay.recorded_context import build_placeholder_prompt, context_of, find_answer_inputs
from nousd.replay.recorded_decisions import RecordedCallHooks, RecordedPermissions, earlier_attempts
from nousd.replay.replay_driver import ReplayDriver, WatchedStore, watch_runtime
from nousd.replay.script import NO_SCRIPT, script_of
from nousd.runtimes.native.loop import NativeSettings
from nousd.store.interface import Store
from nousd.store.records import EventFilter
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.wire import events
from nousd.wire.events import Event
from nousd.wire.events.sessions import CONTRACT_VERSION
from nousd.wire.objects.entries import Entry, MessageEntry
from nousd.wire.objects.inputs import QueuedInput

_EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)

_CALLS_MAX: Final = 1_000_000
"""Maximum model calls of a turn, unless the run ended at its own limit."""

_QUIET_SECONDS: Final = 60.0
"""Time after which a stalled replay is given up; nothing in a replay waits for time."""

_LIMIT: Final = re.compile(r"more than (\d+) model calls in one turn")
_STALE: Final = re.compile(r"nothing happened for (\d+) ms")


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon's settings that affect a run and are not in its log."""

    compact_at: float = 0.8
    keep_recent_tokens: int = 20_000


ProviderOf = Callable[[str], Provider]
"""Returns the provider with a name."""


async def play(
    run: RecordedRun, tuning: Tuning, provider_of: ProviderOf | None = None
) -> tuple[Event, ...]:
    """Play a run and return its events, as logged.

    Args:
        provider_of: returns providers that replace the recorded model.

    Raises:
        NotReplayable: the run failed for a reason that cannot be replayed, or its session differs.
    """
    stage = _Stage(run, tuning, provider_of)
    models = stage.models()
    store = WatchedStore(stage.driver.note)
    try:
        await stage.restore_session(store)
        head = store.head
        async with open_services(stage.deps(store, models)) as services:
            refusal = await stage.perform(services)
        if refusal is not None:
            reason = f"the session is not what it was before the run: {refusal}"
            raise NotReplayable(f"{reason}{NEXT_STEP}")
        return await _read_played_events(store, run.session_id, head)
    finally:
        with trio.CancelScope(shield=True):
            await models.aclose()
            await store.aclose()


class _Stage:
    def __init__(self, run: RecordedRun, tuning: Tuning, provider_of: ProviderOf | None) -> None:
        self._run = run
        self._provider_of = provider_of
        self._tuning = tuning
        self._stimuli = find_external_stimuli(run)
        self._script = NO_SCRIPT if run.is_of_agent else script_of(run)
        self._context = context_of(run)
        start_count = len(self._stimuli.start)
        own_events = [event for event in run.events[start_count:] if not is_outside(event)]
        self._permissions = RecordedPermissions(run)
        self.driver = ReplayDriver(
            self._stimuli,
            own_events,
            run.version,
            self._permissions,
            attempts=earlier_attempts(run),
            offers=self._context.offers,
        )
        self._clock = _Clock(self.driver)
        _require_playable(self._stimuli)

    async def restore_session(self, store: Store) -> None:
        """Write the events that restore the session before the run to the log."""
        log = Log(store, Hub(store), self._clock)
        encoded = log.encode(tuple(_build_session_events(self._run)))
        artifacts = tuple(self._run.artifacts.values())
        await log.submit(encoded, artifacts=artifacts).wait_committed()

    def deps(self, store: Store, models: Models) -> DaemonDeps:
        context, tuning = self._context, self._tuning
        system = context.system
        if not context.is_known:
            system = build_placeholder_prompt(
                self._run, compact_at=tuning.compact_at, keep_recent=tuning.keep_recent_tokens
            )
        return DaemonDeps(
            store=store,
            clock=self._clock,
            models=models,
            tools=tools_of(self._run, self._script, context, self.driver),
            workspaces=self._workspaces(),
            native=NativeSettings(
                system=system,
                system_path=context.system_path,
                model_calls_max=_number(self._run, _LIMIT) or _CALLS_MAX,
                # Answers that were too long end where the recording ends.
                answer_bytes_max=sys.maxsize,
                run_answer_bytes_max=sys.maxsize,
                compact_at=tuning.compact_at,
                keep_recent_tokens=tuning.keep_recent_tokens,
            ),
            permissions=self._permissions,
            around_permissions=lambda permissions, _: permissions,
            call_hooks=RecordedCallHooks(self._permissions),
            around_tools=partial(ToolsAtCall, self.driver),
            around_runtime=lambda runtime: watch_runtime(runtime, self.driver),
            make_agents=lambda _: self._agents(),
            stale_seconds=(_number(self._run, _STALE) or _QUIET_SECONDS * 1000) / 1000,
            delta_retention_days=0,
        )

    def _agents(self) -> Mapping[str, MakeRuntime]:
        run = self._run
        if not run.is_of_agent:
            return {}
        return {
            run.start.runtime: lambda: watch_runtime(RecordedAgent(run, self.driver), self.driver)
        }

    def _workspaces(self) -> Workspaces:
        """Return a workspace. Recorded tools access no files, so any directory will do."""
        return Workspaces(
            Workspace(
                path_sandbox=PathSandbox(Path("/")),
                project=RecordedProject(self._run),
                instructions=SessionMemo(self._instructions),
            )
        )

    async def _instructions(self) -> Sequence[SourceText]:
        return self._context.instructions

    def models(self) -> Models:
        """Return every provider that the run called; they share one script."""
        default, names = _find_model_choice(self._run)
        model = RecordedModel(
            default.model,
            self._script,
            self.driver,
            refused=_find_refused_types(self._run),
        )
        provider_of = self._provider_of or model.copy_with_name
        factories = {name: partial(provider_of, name) for name in names}
        return Models(factories, default, facts=_facts(self._run))

    async def perform(self, services: Services) -> CommandRejected | None:
        """Start the run as recorded, and wait for its end; return the refusal if it cannot start."""
        try:
            run = await self._start(services)
        except CommandRejected as refusal:
            return refusal
        await run.ended.wait()
        await services.store.flush()
        return None

    async def _start(self, services: Services) -> RunHost:
        run_id = self._run.run_id
        live = await services.sessions.get(self._run.session_id)
        start = _start_of(self._run)
        request = request_of(start)
        runtime = services.run_services.runtimes.of(live.state)
        options = request.options or None
        run_facts: Any = {
            "runtime": runtime.name,
            "runtime_version": runtime.version,
            "model": services.run_services.model_of_run(runtime, live.state, options),
            "request": request,
            "in_v1_scope": start.v1_scope is True,
        }
        prompt = _prompt_of(self._stimuli.start)
        if prompt is None:
            leaf = self._run.path[-1] if self._run.path else None
            decided = decisions.resume_run(live.state, run_id, leaf, **run_facts)
        else:
            task = None if start.task is UNSET else start.task
            decided = decisions.start_run(live.state, prompt, leaf_id=None, task=task, **run_facts)
        own_prompt = None if prompt is None else prompt.input_id
        run = services.runs.start(live, run_id, decided, runtime=runtime, own_prompt=own_prompt)
        self.driver.begin(run, services.sessions)
        return run


def _require_playable(stimuli: ExternalStimuli) -> None:
    if (
        stimuli.ending is not None
        and stimuli.ending[0] == 0
        and isinstance(stimuli.ending[1], Broken)
    ):
        failed = stimuli.ending[1].error
        raise NotReplayable(f"the run failed before its first turn: {failed.code}: {failed.cause}")


def _prompt_of(start: Sequence[Event]) -> QueuedInput | None:
    for event in start:
        if isinstance(event, events.QueueUpdate):
            return event.inputs[0]
    return None


async def _read_played_events(store: Store, session_id: str, after: int) -> tuple[Event, ...]:
    played: list[Event] = []
    await for_each_event(
        store, EventFilter(), lambda stored: played.append(event_of(stored)), after=after
    )
    return tuple(event for event in played if event.session_id in ("", session_id))


# --- the session before the run --------------------------------------------------------------


def _build_session_events(run: RecordedRun) -> Iterator[Event]:
    """Yield events that restore the session, on the path that the run continues."""
    state = run.before
    # Without ``origin``, the task call that created it: its parents' decisions are recorded.
    names = (*LASTING, "name", "sampling", "permission_mode", "worker", "runtime", "runtime_model")
    yield events.SessionCreated(
        session_id=state.session_id,
        created_at=state.created_at,
        contract_version=CONTRACT_VERSION,
        **{name: value for name in names if (value := getattr(state, name)) is not None},
    )
    for session_id, settings in (("", run.shared), (state.session_id, state)):
        settings_set = {
            name: value for name in SHARED if (value := getattr(settings, name)) is not None
        }
        if settings_set:
            yield events.SessionUpdated(session_id=session_id, **settings_set)
    for entry in run.path:
        yield events.EntryAppended(session_id=state.session_id, entry=entry)
    if state.queue or state.queue_revision:
        yield events.QueueUpdate(
            session_id=state.session_id,
            change="accepted",
            inputs=state.queue,
            pending_counts=state.pending_counts,
            queue_revision=state.queue_revision,
        )


# --- settings of the daemon, as far as the run shows them ------------------------------------


def _find_model_choice(run: RecordedRun) -> tuple[ModelChoice, set[str]]:
    """Return the model that the run began with, and the names of all known providers."""
    start = _start_of(run)
    names = dict.fromkeys(_providers_in(run.events))
    was_set = run.before.provider is not None and run.before.model == start.model
    if was_set and run.before.provider is not None:
        names = {run.before.provider: None, **names}
    first = next(iter(names), "unknown")
    return ModelChoice(first, start.model), {first, *names}


def _start_of(run: RecordedRun) -> events.AgentStart:
    return next(event for event in run.events if isinstance(event, events.AgentStart))


def _providers_in(all_events: Sequence[Event]) -> Iterator[str]:
    for event in all_events:
        match event:
            case events.ModelInput(provider=str(name)) | events.UsageReported(provider=str(name)):
                yield name
            case events.EntryAppended(entry=MessageEntry(provider=str(name))):
                yield name
            case events.Warning(code="provider_retry", message=text):
                yield text.partition(" ")[0]


def _facts(run: RecordedRun) -> dict[str, ModelFacts]:
    """Return the context windows of the run's models, as far as logged."""
    return {
        f"{event.provider}/{event.model}": ModelFacts(context_window=event.context_window)
        for event in run.events
        if isinstance(event, events.ModelInput) and event.context_window is not UNSET
    }


def _find_refused_types(run: RecordedRun) -> frozenset[str]:
    """Return the media types that the run's models did not accept."""
    entries: dict[str, Entry] = {entry.id: entry for entry in run.path}
    refused: set[str] = set()
    for event in run.events:
        if isinstance(event, events.EntryAppended):
            entries[event.entry.id] = event.entry
    for event in find_answer_inputs(run.events):
        for omitted in () if event.omitted is UNSET else event.omitted:
            entry = entries.get(omitted.entry_id)
            if omitted.reason == "attachment" and isinstance(entry, MessageEntry):
                files = () if entry.attachments is UNSET else entry.attachments
                refused |= {file.media_type for file in files}
    return frozenset(refused)


def _number(run: RecordedRun, pattern: re.Pattern[str]) -> int | None:
    """Return the number in the text of an event that matches the pattern, such as a limit."""
    for event in run.events:
        text = getattr(event, "cause", getattr(event, "message", ""))
        if isinstance(text, str) and (found := pattern.fullmatch(text)):
            return int(found[1])
    return None


class _Clock:
    """Returns increasing times, and the recorded ids as long as the replay does not differ."""

    def __init__(self, driver: ReplayDriver) -> None:
        self._driver = driver
        self._count = itertools.count(1)

    def now(self) -> str:
        time = _EPOCH + timedelta(microseconds=next(self._count))
        return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def new_id(self, prefix: str) -> str:
        return self._driver.next_id(prefix) or f"{prefix}-replay-{next(self._count)}"
