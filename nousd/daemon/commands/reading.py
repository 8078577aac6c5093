"""Commands that read the current state."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from nousd import __version__
from nousd.daemon.commands.pages import page_of
from nousd.daemon.eventlog.event_filters import check_pruned, event_filter, position
from nousd.daemon.eventlog.hub import STRETCH_EVENTS
from nousd.daemon.eventlog.normalized import NormalizedReader
from nousd.daemon.replies import Reply
from nousd.daemon.services import Services
from nousd.errors import CommandRejected
from nousd.machine.session.settings import in_force
from nousd.machine.session.state import SessionState
from nousd.wire import commands
from nousd.wire.codec.unset import or_unset
from nousd.wire.commands import COMMANDS
from nousd.wire.commands.subscribe import cursor
from nousd.wire.events import EVENTS, FROZEN_EVENTS
from nousd.wire.limit_table import LIMITS
from nousd.wire.limits import PAGE_BYTES_MAX
from nousd.wire.responses import Capabilities, Events, Pong, Run, Runs, State
from nousd.wire.responses.base import RunState
from nousd.wire.responses.runs import ActiveRun, RunRecord
from nousd.wire.responses.state import OpenMessage


async def ping(_services: Services, _command: commands.Ping) -> Reply:
    """Respond to a ping."""
    return Pong(message="pong")


async def get_state(services: Services, command: commands.GetState) -> Reply:
    """Read a session's state as of the cursor in the response."""
    live = await services.sessions.target(command.session_id)
    state = services.sessions.without_session() if live is None else live.committed
    running = state if command.session_id else _select_reachable_run(services, state)
    run_id = "" if running.run is None else running.run.run_id
    choice = services.run_services.choice_of(state)
    shared = in_force(state, services.sessions.shown_defaults)
    return State(
        run_state=run_state(running),
        run_id=run_id,
        session_id=state.session_id,
        steering_mode=shared.steering_mode,
        follow_up_mode=shared.follow_up_mode,
        pending_counts=running.pending_counts,
        queue_revision=running.queue_revision,
        cursor=cursor(services.hub.head),
        runs=tuple(
            active_run(services, running) for running in services.sessions.list_committed_running()
        ),
        provider=choice.provider,
        model=choice.model,
        permission_mode=services.run_services.permissions.mode_of(state),
        workspace=services.workspaces.path_of(state),
        override=or_unset(services.run_services.overrides.find_in_force(state)),
        thinking=or_unset(choice.thinking),
        leaf_id=or_unset(state.leaf_id),
        name=or_unset(state.name),
        open_message=_open_message(services, run_id),
        usage=or_unset(state.usage),
        runtime=or_unset(state.runtime),
        runtime_model=or_unset(state.runtime_model),
        runtime_namespace=or_unset(state.runtime_namespace),
    )


def _select_reachable_run(services: Services, active: SessionState) -> SessionState:
    """Return the state of the session whose run a steer without a session id would reach, else the
    active state without a run: the run of a task, for example, is reached only by its session id.
    """
    target = services.sessions.find_committed_target()
    return msgspec.structs.replace(active, run=None) if target is None else target


def run_state(state: SessionState | None) -> RunState:
    """Return the session's ``run_state`` for ``get_state``."""
    return "idle" if state is None or state.run is None else state.run.phase


def active_run(services: Services, state: SessionState) -> ActiveRun:
    """Return the session's active run as clients see it."""
    run = state.run
    assert run is not None
    return ActiveRun(
        run_id=run.run_id,
        session_id=state.session_id,
        run_state=run_state(state),
        started_at=run.started_at,
        last_activity_at=services.runs.last_activity_at(run.run_id, run.started_at),
        client_id=run.request.client_id,
        agent_id=run.request.agent_id,
        agent_profile=run.request.agent_profile,
        correlation_id=run.request.correlation_id,
        origin=or_unset(run.task),
    )


def _open_message(services: Services, run_id: str) -> OpenMessage | UnsetType:
    driver = services.runs.find(run_id)
    if driver is None or driver.shown.message is None:
        return UNSET
    message = driver.shown.message
    return OpenMessage(message_id=message.message_id, role=message.role, text=message.text)


async def list_runs(services: Services, command: commands.ListRuns) -> Reply:
    """List runs, newest first."""
    if command.session_id is not None:
        await services.sessions.get(command.session_id)
    if command.before is not None and await services.store.run(command.before) is None:
        raise CommandRejected("run_not_found")
    rows = await services.store.runs(
        command.session_id, limit=command.limit + 1, before=command.before
    )
    records = page_of([_as_it_is_now(services, row) for row in rows[: command.limit]])
    return Runs(runs=records, has_more=len(rows) > len(records))


async def get_run(services: Services, command: commands.GetRun) -> Reply:
    """Read one run's record."""
    record = await services.store.run(command.run_id)
    if record is None:
        raise CommandRejected("run_not_found")
    return Run(run=_as_it_is_now(services, record))


def _as_it_is_now(services: Services, record: RunRecord) -> RunRecord:
    """Add the facts that only the running process knows to the record of an active run."""
    if record.status != "running":
        return record
    last_activity_at = services.runs.last_activity_at(record.run_id, record.started_at)
    return msgspec.structs.replace(record, last_activity_at=last_activity_at)


async def get_events(services: Services, command: commands.GetEvents) -> Reply:
    """Read a page of the log."""
    head = services.hub.head
    start = position(command, head=head, default=0)
    after = start.after
    filter_ = event_filter(command)
    view = None if command.view is None else NormalizedReader(services.store, start)
    pruned = await check_pruned(services.store, after, filter_, head=head)
    lines: list[bytes] = []
    while not lines and after < head:
        until = min(head, after + STRETCH_EVENTS)
        page = await services.store.events_after(
            after, filter_, until=until, limit=command.limit, bytes_max=PAGE_BYTES_MAX
        )
        after = page[-1].seq if page else until
        if view is None:
            lines = [stored.line.rstrip(b"\n") for stored in page]
        else:
            lines, after = await view.render(page, after, PAGE_BYTES_MAX)
    return Events(
        events=tuple(map(msgspec.Raw, lines)),
        next=cursor(after),
        head=cursor(head),
        pruned=pruned,
    )


async def get_capabilities(services: Services, _command: commands.GetCapabilities) -> Reply:
    """List the supported features and the limits in force."""
    limits = {
        **{name: value for name, (value, _) in LIMITS.items()},
        "line_bytes_max": services.line_bytes_max,
        "answer_bytes_max": services.answer_bytes_max,
        "run_answer_bytes_max": services.run_answer_bytes_max,
    }
    choice = services.run_services.choice_of(services.sessions.without_session())
    return Capabilities(
        protocol="1",
        version=__version__,
        commands=tuple(COMMANDS),
        events=tuple(EVENTS),
        frozen_events=tuple(FROZEN_EVENTS),
        provider=choice.provider,
        model=choice.model,
        workdir=services.workspaces.default.path,
        extension_commands=tuple(sorted(services.extension_commands)),
        limits=limits,
        runtime=services.run_services.runtimes.get("native").capabilities,
    )
