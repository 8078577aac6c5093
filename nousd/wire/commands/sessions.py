"""Commands that create, select, list, read, change and delete sessions."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from nousd.wire.commands.base import AnsweredBy
from nousd.wire.limits import (
    FOUND_SESSIONS_MAX,
    NAME_CHARS_MAX,
    OVERRIDE_SECONDS_MAX,
    PAGE_ROWS_MAX,
    PATH_CHARS_MAX,
    REASON_CHARS_MAX,
    UNDO_SECONDS_MAX,
)
from nousd.wire.objects.entries import Sampling, Thinking
from nousd.wire.objects.field_types import Folder, Name, PageSize, QueueMode, ToolNames
from nousd.wire.objects.runtimes import DEFAULT_NAMESPACE, Namespace
from nousd.wire.objects.session_values import SessionRules, SourceMetadata, SourceName
from nousd.wire.responses import (
    Accepted,
    Attached,
    AuthStatus,
    Runtimes,
    SessionDeleted,
    SessionMatches,
    SessionNow,
    Sessions,
    SessionSelected,
    State,
    WorkspaceOverride,
)

Newest = Annotated[int, Meta(ge=0, le=PAGE_ROWS_MAX)]
"""Number of the newest rows to include."""


SearchCursor = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX + 20)]
"""Where a search stopped: the last session and, after "/", the position in a partly searched one."""


class NewSession(AnsweredBy[SessionSelected], frozen=True, kw_only=True):
    """Create a session and, unless ``activate`` is false, make it the active one."""

    name: Name | None = None
    parent_id: Name | None = None
    workspace: Folder | None = None
    activate: bool = True
    source: SourceName | None = None
    source_metadata: SourceMetadata | None = None
    model: Name | None = None
    provider: Name | None = None
    sampling: Sampling | None = None
    rules: SessionRules | None = None
    active_tools: ToolNames | None = None
    steering_mode: QueueMode | None = None
    follow_up_mode: QueueMode | None = None
    runtime: Name | None = None
    runtime_namespace: Namespace | None = None


class SwitchSession(AnsweredBy[SessionSelected], frozen=True, kw_only=True):
    """Make a session the active one. Runs are not affected."""

    session_id: Name


class BranchSession(AnsweredBy[SessionSelected], frozen=True, kw_only=True):
    """Copy a session in its current state and, unless ``activate`` is false, make the copy active."""

    session_id: Name | None = None
    parent_id: Name | None = None
    name: Name | None = None
    activate: bool = True


class ListSessions(AnsweredBy[Sessions], frozen=True, kw_only=True):
    """List sessions, most recently used first. A session must match all given filters."""

    limit: PageSize = 100
    before: Name | None = None
    offset: Annotated[int, Meta(ge=0, le=2**53)] = 0
    children: bool = False
    workspace: Annotated[str, Meta(min_length=1, max_length=PATH_CHARS_MAX)] | None = None
    q: Name | None = None
    archived: bool | None = None
    source: SourceName | None = None
    parent_id: Name | None = None
    deletion_scheduled: bool = False


class SearchSessions(AnsweredBy[SessionMatches], frozen=True, kw_only=True):
    """Search the titles and messages of sessions, most recently used sessions first."""

    query: Name
    limit: Annotated[int, Meta(ge=1, le=FOUND_SESSIONS_MAX)] = 20
    before: SearchCursor | None = None
    children: bool = False
    workspace: Annotated[str, Meta(min_length=1, max_length=PATH_CHARS_MAX)] | None = None
    archived: bool | None = None


class GetSession(AnsweredBy[SessionNow], frozen=True, kw_only=True):
    """Read everything about one session and, if requested, its newest messages."""

    session_id: Name
    messages: Newest = 0


class UpdateSession(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Update the metadata, rules and sampling of a session; omitted keys are unchanged."""

    session_id: Name
    name: Name | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    rules: SessionRules | UnsetType | None = UNSET
    sampling: Sampling | UnsetType | None = UNSET
    source_metadata: SourceMetadata | UnsetType | None = UNSET


class RenameSession(AnsweredBy[SessionSelected], frozen=True, kw_only=True):
    """Set the name of a session."""

    name: Name
    session_id: Name | None = None


class MarkSeen(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Record that the user has seen a session up to an entry, by default up to its leaf."""

    session_id: Name | None = None
    entry_id: Name | None = None


class DeleteSession(AnsweredBy[SessionDeleted], frozen=True, kw_only=True):
    """Permanently delete the content of a session and of its tasks' sessions, at once or later."""

    session_id: Name
    abort: bool = False
    undo_seconds: Annotated[int, Meta(ge=0, le=UNDO_SECONDS_MAX)] = 0


class RestoreSession(AnsweredBy[SessionSelected], frozen=True, kw_only=True):
    """Cancel the scheduled deletion of a session and of its tasks' sessions."""

    session_id: Name


class GetState(AnsweredBy[State], frozen=True, kw_only=True):
    """Read a session's state, for a status line or after a reconnection."""

    session_id: Name | None = None


class SetModel(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Set the model for the session's next model calls."""

    model: Name
    session_id: Name | None = None
    must_be_listed: bool = False


class SetRuntime(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Set the runtime of the session's next runs; null leaves the choice to the daemon."""

    runtime: Name | None
    session_id: Name | None = None


class GetAuthStatus(AnsweredBy[AuthStatus], frozen=True, kw_only=True):
    """Report whether a runtime's program is logged in for a namespace, and how to log in."""

    runtime: Name
    namespace: Namespace = DEFAULT_NAMESPACE


class GetRuntimes(AnsweredBy[Runtimes], frozen=True, kw_only=True):
    """List the runtimes that sessions can use."""


class SetThinking(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Set how much the session's model reasons, from its next call on; null leaves it to the model."""

    level: Thinking | None
    session_id: Name | None = None


class SetSteeringMode(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Set whether a turn takes one pending steer or all of them."""

    mode: QueueMode
    session_id: Name | None = None


class SetFollowUpMode(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Set whether a turn takes one pending follow-up or all of them."""

    mode: QueueMode
    session_id: Name | None = None


class AttachSession(AnsweredBy[Attached], frozen=True, kw_only=True):
    """Move an idle session to another workspace."""

    workspace: Folder
    session_id: Name | None = None
    reason: Annotated[str, Meta(min_length=1, max_length=REASON_CHARS_MAX)] | None = None


class OverrideWorkspace(AnsweredBy[WorkspaceOverride], frozen=True, kw_only=True):
    """Temporarily allow approval requests for paths outside the workspace."""

    ttl_seconds: Annotated[int, Meta(ge=0, le=OVERRIDE_SECONDS_MAX)]
    session_id: Name | None = None
