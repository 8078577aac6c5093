"""Sessions and their to-do lists in the form of the contract."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from nousd.views.tandem.messages import Message
from nousd.views.tandem.values import Body, milliseconds, milliseconds_or_none, or_none, seconds
from nousd.wire.objects.todos import Todo
from nousd.wire.responses.sessions import SessionRecord, SessionSummary

DEFAULT_TITLE: Final = "New session"
"""The title of a session without a name or a message."""


class SessionTime(msgspec.Struct, frozen=True):
    """Times in seconds since the epoch."""

    created: int
    updated: int


class ModelRef(
    msgspec.Struct, frozen=True, rename={"provider_id": "providerID", "model_id": "modelID"}
):
    """A model and its provider."""

    provider_id: str
    model_id: str


class Environment(msgspec.Struct, frozen=True):
    """The machine on which the session's tools run."""

    os: str
    arch: str
    shell_family: str = "posix"
    path_style: str = "posix"


class Session(Body, frozen=True, kw_only=True):
    """A session. ``directory`` and ``workspaceRoot`` are the same; ``messages`` is empty in lists.

    The fields whose names begin with ``attach`` are set once the session has been moved. ``archived``
    and ``createdAtMs`` are fields that clients know and the engine leaves out. ``unread``, an addition
    of nousd, is true if the session has entries that no client of the user has marked as seen. ``ok`` is
    set in the reply to ``attach``, where one client expects it.
    """

    id: str
    title: str
    time: SessionTime
    messages: Sequence[Message]
    version: str = msgspec.field(default_factory=lambda: "v1")
    project_id: str
    directory: str
    workspace_root: str
    model: ModelRef | None = None
    provider: str | None = None
    source_kind: str | None = None
    source_metadata: dict[str, Any] | None = None
    environment: Environment
    parent_id: str | None = None
    origin_workspace_root: str | None = None
    attached_from_workspace: str | None = None
    attached_to_workspace: str | None = None
    attach_timestamp_ms: int | None = None
    attach_reason: str | None = None
    archived: bool = msgspec.field(default_factory=bool)
    unread: bool = False
    created_at_ms: int
    ok: bool = False


class ChangedSession(Session, frozen=True, kw_only=True):
    """A session in the reply to a change. The engine spells the keys of this reply differently, so each
    key occurs in both spellings, except those within ``time`` and ``model``.
    """

    project: str = msgspec.field(name="project_id")
    workspace: str = msgspec.field(name="workspace_root")
    kind_of_source: str | None = msgspec.field(name="source_kind", default=None)
    metadata_of_source: dict[str, Any] | None = msgspec.field(name="source_metadata", default=None)
    parent: str | None = msgspec.field(name="parent_id", default=None)
    origin: str | None = msgspec.field(name="origin_workspace_root", default=None)
    moved_from: str | None = msgspec.field(name="attached_from_workspace", default=None)
    moved_to: str | None = msgspec.field(name="attached_to_workspace", default=None)
    moved_at_ms: int | None = msgspec.field(name="attach_timestamp_ms", default=None)
    moved_because: str | None = msgspec.field(name="attach_reason", default=None)


def render_changed_session(record: SessionRecord) -> ChangedSession:
    """Return a session for the reply to a change."""
    fields = msgspec.structs.asdict(render_session(record))
    # The key of each added field is the Python name of the session's field with the same value.
    added = msgspec.structs.fields(ChangedSession)[len(fields) :]
    return ChangedSession(**fields, **{field.name: fields[field.encode_name] for field in added})


def render_session(
    record: SessionSummary, messages: Sequence[Message] = (), *, ok: bool = False
) -> Session:
    """Return a session with these messages."""
    return Session(
        id=record.session_id,
        title=DEFAULT_TITLE if record.title is UNSET else record.title,
        time=SessionTime(seconds(record.created_at), seconds(record.updated_at)),
        messages=messages,
        project_id=project_id(record.workspace),
        directory=record.workspace,
        workspace_root=record.workspace,
        model=ModelRef(record.provider, record.model),
        provider=record.provider,
        source_kind=or_none(record.source),
        source_metadata=or_none(record.source_metadata),
        environment=ENVIRONMENT,
        parent_id=_parent_of(record),
        archived=record.archived,
        unread=record.unread,
        created_at_ms=milliseconds(record.created_at),
        ok=ok,
        **(_attachment(record) if isinstance(record, SessionRecord) else {}),
    )


def _parent_of(record: SessionSummary) -> str | None:
    """Return the id of the session of which this one is a branch, a child or a task; None if none."""
    if record.origin is not UNSET:
        return record.origin.session_id
    return or_none(record.parent_id)


def _attachment(record: SessionRecord) -> dict[str, Any]:
    """Return the fields about the move of a session, which only a ``SessionRecord`` has."""
    attached_from = or_none(record.attached_from)
    return {
        "origin_workspace_root": or_none(record.origin_workspace),
        "attached_from_workspace": attached_from,
        "attached_to_workspace": None if attached_from is None else record.workspace,
        "attach_timestamp_ms": milliseconds_or_none(record.attached_at),
        "attach_reason": or_none(record.attach_reason),
    }


def project_id(workspace: str) -> str:
    """Return the contract's id of a workspace."""
    return f"workspace-{hashlib.sha256(workspace.lower().encode()).hexdigest()[:12]}"


ENVIRONMENT: Final = Environment(platform.system().lower(), platform.machine().lower())
"""The environment of this machine."""


class TodoItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item of a to-do list."""

    id: str
    content: str
    status: str
    priority: str | None = None


def render_todos(todos: Iterable[Todo]) -> list[TodoItem]:
    """Return a to-do list."""
    return [TodoItem(item.id, item.content, item.status, or_none(item.priority)) for item in todos]
