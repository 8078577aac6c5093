"""A session as the contract spells it."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from nousd.views.tandem.messages import Message
from nousd.views.tandem.values import Body, milliseconds, or_none, seconds
from nousd.wire.objects.todos import Todo
from nousd.wire.responses.sessions import SessionRecord, SessionSummary

DEFAULT_TITLE: Final = "New session"
"""What a session is called that has no name."""


class SessionTime(msgspec.Struct, frozen=True):
    """Seconds of the epoch."""

    created: int
    updated: int


class ModelRef(
    msgspec.Struct, frozen=True, rename={"provider_id": "providerID", "model_id": "modelID"}
):
    """A model and whose it is."""

    provider_id: str
    model_id: str


class Environment(msgspec.Struct, frozen=True):
    """The machine that the session's tools run on."""

    os: str
    arch: str
    shell_family: str = "posix"
    path_style: str = "posix"


class Session(Body, frozen=True, kw_only=True):
    """``directory`` and ``workspaceRoot`` are the same folder. ``messages`` is empty in lists.

    ``attachedFromWorkspace`` and what belongs to it is there once the session was moved. ``archived``
    and ``createdAtMs`` are fields of the clients that the engine leaves out. ``ok`` is in the answer to
    ``attach``, where one of them looks for it.
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
    created_at_ms: int
    ok: bool = False


class ChangedSession(Session, frozen=True, kw_only=True):
    """A session that was changed, which the engine spells in another way: here it has both. Only of
    ``time`` and ``model`` there are not two.
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
    """Returns a session as the answer to a change has it."""
    told = render_session(record)
    return ChangedSession(
        **msgspec.structs.asdict(told),
        project=told.project_id,
        workspace=told.workspace_root,
        kind_of_source=told.source_kind,
        metadata_of_source=told.source_metadata,
        parent=told.parent_id,
        origin=told.origin_workspace_root,
        moved_from=told.attached_from_workspace,
        moved_to=told.attached_to_workspace,
        moved_at_ms=told.attach_timestamp_ms,
        moved_because=told.attach_reason,
    )


def render_session(
    record: SessionSummary, messages: Sequence[Message] = (), *, ok: bool = False
) -> Session:
    """Returns a session, with its messages where they are wanted."""
    attached = record if isinstance(record, SessionRecord) else None
    attached_from = None if attached is None else or_none(attached.attached_from)
    return Session(
        id=record.session_id,
        title=DEFAULT_TITLE if isinstance(record.name, msgspec.UnsetType) else record.name,
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
        origin_workspace_root=None if attached is None else or_none(attached.origin_workspace),
        attached_from_workspace=attached_from,
        attached_to_workspace=None if attached_from is None else record.workspace,
        attach_timestamp_ms=_attached_at(attached),
        attach_reason=None if attached is None else or_none(attached.attach_reason),
        archived=record.archived,
        created_at_ms=milliseconds(record.created_at),
        ok=ok,
    )


def _parent_of(record: SessionSummary) -> str | None:
    """Returns the session that one is a branch or child of, or whose call of ``task`` made it."""
    if record.origin is not UNSET:
        return record.origin.session_id
    return or_none(record.parent_id)


def _attached_at(record: SessionRecord | None) -> int | None:
    attached_at = None if record is None else or_none(record.attached_at)
    return None if attached_at is None else milliseconds(attached_at)


def project_id(workspace: str) -> str:
    """Returns the id by which the contract calls a folder."""
    return f"workspace-{hashlib.sha256(workspace.lower().encode()).hexdigest()[:12]}"


ENVIRONMENT: Final = Environment(platform.system().lower(), platform.machine().lower())
"""This machine."""


class TodoItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing to do."""

    id: str
    content: str
    status: str
    priority: str | None = None


def render_todos(todos: Iterable[Todo]) -> list[TodoItem]:
    """Returns a list of things to do."""
    return [TodoItem(item.id, item.content, item.status, or_none(item.priority)) for item in todos]
