"""Runs in the form of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec
from msgspec import UnsetType

from nousd.views.tandem.frames import Frame
from nousd.views.tandem.values import Body, milliseconds, or_none
from nousd.wire.responses.runs import ActiveRun

TENANT: Final = {"org_id": "local", "workspace_id": "local", "source": "local_implicit"}
"""The owner of a session: always the one user of this machine."""

DEFERRED: Final = "active_run"
"""The reason why a session was not deleted."""

RETRY_AFTER_MS: Final = 500
"""The delay after which a client may retry after a conflict."""


def attach_path(session_id: str, run_id: str) -> str:
    """Return the path of the event stream of a run."""
    return f"/event?sessionID={quote(session_id, safe='')}&runID={quote(run_id, safe='')}"


def context_run_id(session_id: str) -> str:
    """Return the id under which the contract groups the runs of a session."""
    return f"session-{session_id}"


_CHANNELS: Final = {
    "session.error": "system",
    "provider.usage": "system",
    "message.part.updated": "assistant",
    "permission.asked": "tool",
    "permission.replied": "tool",
    "permission.wait.timeout": "tool",
    "question.asked": "tool",
    "question.replied": "tool",
    "todo.updated": "tool",
}
"""type of a frame -> its channel. Other types have ``system``, a part of a tool call has ``tool``."""


def to_run_frame(frame: Frame) -> Frame:
    """Return a frame for a stream of one run, where every frame has its session, run and channel."""
    properties = frame.properties
    envelope = frame.envelope
    ids: dict[str, Any] = {}
    if not isinstance(envelope, UnsetType):
        ids = {"sessionID": envelope.session_id, "runID": envelope.run_id}
    defaults = {"tenantContext": TENANT, "agentID": None, "channel": _channel(frame)}
    return Frame(frame.type, {**ids, **defaults, **properties}, envelope)


def _channel(frame: Frame) -> str:
    part = frame.properties.get("part")
    if isinstance(part, dict) and part.get("type") == "tool":
        return "tool"
    return _CHANNELS.get(frame.type, "system")


class RunFacts(Body, frozen=True, kw_only=True):
    """An active run. Its client and agent are left out if they are unknown."""

    run_id: str
    started_at_ms: int
    last_activity_at_ms: int
    client_id: str | None = None
    agent_id: str | None = None
    agent_profile: str | None = None


class AttachableRun(RunFacts, frozen=True, kw_only=True):
    """An active run, with the path of its event stream."""

    attach_event_stream: str


class RunNow(Body, frozen=True, kw_only=True, omit_defaults=False):
    """The state of a session that has an active run."""

    active: AttachableRun
    context_run_id: str
    linked_context_run_id: str = msgspec.field(name="linked_context_run_id")


class Idle(msgspec.Struct, frozen=True):
    """A session without a run."""

    active: None = None


class ActiveRunOfConflict(RunFacts, frozen=True, kw_only=True, omit_defaults=False):
    """The active run in a conflict; unknown fields are null."""


class Conflict(Body, frozen=True, kw_only=True, omit_defaults=False):
    """The refusal of a run while another one is active."""

    error: str = "Session already has an active run"
    code: Literal["SESSION_RUN_CONFLICT"] = "SESSION_RUN_CONFLICT"
    retryable: bool = True
    session_id: str
    active_run: ActiveRunOfConflict
    retry_after_ms: int = RETRY_AFTER_MS
    attach_event_stream: str


class Started(Body, frozen=True, kw_only=True):
    """A started run. If an earlier request with the same key started it, ``idempotentReplay`` and the
    session are set.
    """

    run_id: str
    context_run_id: str
    linked_context_run_id: str = msgspec.field(name="linked_context_run_id")
    attach_event_stream: str
    session_id: str | None = None
    idempotent_replay: bool = False


def render_run_state(session_id: str, run: ActiveRun | None) -> RunNow | Idle:
    """Return the state of a session: its active run, or idle."""
    if run is None:
        return Idle()
    return RunNow(
        active=AttachableRun(
            **msgspec.structs.asdict(render_run(run)),
            attach_event_stream=attach_path(session_id, run.run_id),
        ),
        context_run_id=context_run_id(session_id),
        linked_context_run_id=context_run_id(session_id),
    )


def render_run(run: ActiveRun) -> RunFacts:
    """Return an active run in the form of the contract."""
    return RunFacts(
        run_id=run.run_id,
        started_at_ms=milliseconds(run.started_at),
        last_activity_at_ms=milliseconds(or_none(run.last_activity_at) or run.started_at),
        client_id=or_none(run.client_id),
        agent_id=or_none(run.agent_id),
        agent_profile=or_none(run.agent_profile),
    )


def render_conflict(details: Mapping[str, Any]) -> Conflict:
    """Return a conflict from the details of a refused prompt."""
    session_id, run_id = str(details["session_id"]), str(details["run_id"])
    return Conflict(
        session_id=session_id,
        active_run=ActiveRunOfConflict(
            run_id=run_id,
            started_at_ms=milliseconds(details["started_at"]),
            last_activity_at_ms=milliseconds(details["last_activity_at"]),
            client_id=details.get("client_id"),
            agent_id=details.get("agent_id"),
            agent_profile=details.get("agent_profile"),
        ),
        attach_event_stream=attach_path(session_id, run_id),
    )


def render_started(session_id: str, run_id: str, *, is_repeated: bool) -> Started:
    """Return the reply to a prompt that names the run."""
    return Started(
        run_id=run_id,
        context_run_id=context_run_id(session_id),
        linked_context_run_id=context_run_id(session_id),
        attach_event_stream=attach_path(session_id, run_id),
        session_id=session_id if is_repeated else None,
        idempotent_replay=is_repeated,
    )
