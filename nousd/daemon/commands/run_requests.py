"""Checks and reads that precede a run: its options, a conflicting run, appended messages, unfinished
work.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from nousd.daemon.commands.models import find_model, resolve_model
from nousd.daemon.services import Services
from nousd.daemon.sessions.history import whole_path
from nousd.daemon.sessions.live_session import LiveSession
from nousd.errors import CommandRejected, InvalidPayload
from nousd.machine.context.model_input import ModelChoice
from nousd.machine.session import appending, decisions
from nousd.machine.session.state import SessionState
from nousd.wire import commands
from nousd.wire.codec.unset import or_unset
from nousd.wire.limits import APPENDED_LOOKED_AT_MAX, PAGE_BYTES_MAX
from nousd.wire.objects.entries import Entry
from nousd.wire.objects.run_options import NOTHING_ASKED, RunOptions, RunRequest


def build_run_request(
    services: Services, state: SessionState, command: commands.Prompt
) -> RunRequest:
    """Return the run request of a prompt.

    Raises:
        CommandRejected: ``tool_not_registered``, ``model_unknown``, ``provider_not_configured`` or
            ``provider_not_usable``.
        InvalidPayload: a tool call is required, but the list of tools is empty.
    """
    for name in command.tools or ():
        if name not in services.tools.of(state.session_id):
            raise CommandRejected(f"tool_not_registered: {name}")
    if command.tool_choice == "required" and command.tools == ():
        raise InvalidPayload("tool_choice must not be required where tools is empty")
    choice = _choose_model(services, state, command)
    options = RunOptions(
        tools=or_unset(command.tools),
        provider=UNSET if choice is None else choice.provider,
        model=UNSET if choice is None else choice.model,
        sampling=or_unset(command.sampling),
        tool_choice=or_unset(command.tool_choice),
    )
    return RunRequest(
        client_id=or_unset(command.client_id),
        agent_id=or_unset(command.agent_id),
        agent_profile=or_unset(command.agent_profile),
        correlation_id=or_unset(command.correlation_id),
        options=UNSET if options == _NO_OPTIONS else options,
    )


_NO_OPTIONS: Final = RunOptions()


def choice_for(services: Services, state: SessionState, command: Any) -> ModelChoice:
    """Return the model that an input will be sent to, as far as that is known when it is accepted."""
    chosen = (
        _choose_model(services, state, command) if isinstance(command, commands.Prompt) else None
    )
    return services.run_services.choice_of(state) if chosen is None else chosen


def _choose_model(
    services: Services, state: SessionState, command: commands.Prompt
) -> ModelChoice | None:
    """Return the model that a prompt sets for its run; None if it sets none."""
    if command.provider is not None:
        return resolve_model(services, command.model, command.provider)
    return None if command.model is None else find_model(services, command.model, state)


# --- conflicting run ---------------------------------------------------------------------------


def refuse_second_run(services: Services, live: LiveSession, client_id: str | None) -> None:
    """Raise CommandRejected ``run_in_progress`` if the session has an active run, and record the
    conflict.
    """
    run = live.state.run
    if run is None:
        return
    if live.run is not None:
        live.run.tell_conflict(client_id)
    names = msgspec.to_builtins(msgspec.structs.replace(run.request, options=UNSET))
    raise CommandRejected(
        "run_in_progress",
        details={
            "run_id": run.run_id,
            "session_id": live.session_id,
            "started_at": run.started_at,
            "last_activity_at": services.runs.last_activity_at(run.run_id, run.started_at),
            **names,
        },
    )


# --- appended messages and unfinished work ------------------------------------------------------


LOOKS_MAX: Final = 16
"""Maximum reads of a session whose leaf keeps changing."""


async def read_appended_tail(
    services: Services, live: LiveSession, leaf_id: str | None
) -> Sequence[Entry]:
    """Return the unanswered messages that were appended at the end of a path."""
    if leaf_id is None:
        return ()
    if live.committed.leaf_id != leaf_id:
        await services.store.flush()
    path = await whole_path(
        services.store,
        live.session_id,
        leaf_id,
        limit=APPENDED_LOOKED_AT_MAX,
        bytes_max=PAGE_BYTES_MAX,
    )
    newest_first = takewhile(appending.is_appended, reversed(path.entries))
    return tuple(newest_first)[::-1]


class UnfinishedWork(NamedTuple):
    """The work that a resumed run continues: the leaf, and the request of the run that left it."""

    leaf: Entry | None
    request: RunRequest


async def read_unfinished_work(services: Services, live: LiveSession) -> UnfinishedWork:
    """Return the unfinished work of a session. Nothing is awaited after the last read.

    Raises:
        CommandRejected: ``session_changed``, because others keep appending.
    """
    for _ in range(LOOKS_MAX):
        leaf_id = live.state.leaf_id
        await services.store.flush()
        leaf = None if leaf_id is None else await services.store.entry(live.session_id, leaf_id)
        run_id = decisions.find_run_to_resume(live.state, leaf)
        record = None if run_id is None else await services.store.run(run_id)
        if (
            live.state.leaf_id == leaf_id
            and decisions.find_run_to_resume(live.state, leaf) == run_id
        ):
            options = UNSET if record is None else record.options
            return UnfinishedWork(
                leaf, NOTHING_ASKED if options is UNSET else RunRequest(options=options)
            )
    raise CommandRejected("session_changed")
