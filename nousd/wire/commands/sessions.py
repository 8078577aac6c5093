"""The commands that make, select, list, read, set up, change and delete sessions.

What they answer is in ``session_responses``, ``state_response`` and ``responses``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import UNSET, Meta, UnsetType

from nousd.wire.commands.base import AnsweredBy
from nousd.wire.limits import OVERRIDE_SECONDS_MAX, PAGE_ROWS_MAX, PATH_CHARS_MAX, REASON_CHARS_MAX
from nousd.wire.objects.entries import Sampling, Thinking
from nousd.wire.objects.session_settings import SessionRules, SourceMetadata, SourceName
from nousd.wire.objects.words import Folder, Name, PageSize, QueueMode

if TYPE_CHECKING:
    from nousd.wire.responses import (  # noqa: F401  in quotes below
        Accepted,
        Attached,
        SessionDeleted,
        SessionNow,
        Sessions,
        SessionSelected,
        State,
        WorkspaceOverride,
    )


Newest = Annotated[int, Meta(ge=0, le=PAGE_ROWS_MAX)]
"""How many rows come with something else, the newest ones."""


class NewSession(AnsweredBy["SessionSelected"], frozen=True, kw_only=True):
    """Creates a session and, unless ``activate`` is false, makes it the active one.

    ``workspace`` is the folder that it works in; without it, the daemon's workdir. ``parent_id``
    makes it a child of that session in lists; nothing is taken over from it.
    """

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


class SwitchSession(AnsweredBy["SessionSelected"], frozen=True, kw_only=True):
    """Makes a session the active one; running runs are not touched."""

    session_id: Name


class BranchSession(AnsweredBy["SessionSelected"], frozen=True, kw_only=True):
    """Copies what a session holds now into a new one and, unless ``activate`` is false, makes that the
    active one.
    """

    session_id: Name | None = None
    parent_id: Name | None = None
    name: Name | None = None
    activate: bool = True


class ListSessions(AnsweredBy["Sessions"], frozen=True, kw_only=True):
    """Lists sessions, most recently used first; ``before`` (a session id) continues a page.

    ``children``: also those that calls of the tool ``task`` made. Of the filters (``workspace``, ``q``,
    ``archived``, ``source``, ``parent_id``) all that are given must fit.
    """

    limit: PageSize = 100
    before: Name | None = None
    offset: Annotated[int, Meta(ge=0, le=2**53)] = 0
    children: bool = False
    workspace: Annotated[str, Meta(min_length=1, max_length=PATH_CHARS_MAX)] | None = None
    q: Name | None = None
    archived: bool | None = None
    source: SourceName | None = None
    parent_id: Name | None = None


class GetSession(AnsweredBy["SessionNow"], frozen=True, kw_only=True):
    """Reads what is known of one session, and so many of the newest messages of its transcript."""

    session_id: Name
    messages: Newest = 0


class UpdateSession(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Changes the given settings of a session, also during a run; null takes back what was set."""

    session_id: Name
    name: Name | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    rules: SessionRules | UnsetType | None = UNSET
    sampling: Sampling | UnsetType | None = UNSET
    source_metadata: SourceMetadata | UnsetType | None = UNSET


class RenameSession(AnsweredBy["SessionSelected"], frozen=True, kw_only=True):
    """Gives a session a name for people."""

    name: Name
    session_id: Name | None = None


class DeleteSession(AnsweredBy["SessionDeleted"], frozen=True, kw_only=True):
    """Deletes a session's content for good, and that of the sessions that its calls of ``task`` made; a
    tombstone keeps each id from being used again.

    ``abort``: runs that stand in the way are told to stop, instead of the command being refused.
    """

    session_id: Name
    abort: bool = False


class GetState(AnsweredBy["State"], frozen=True, kw_only=True):
    """Reads what a client needs to draw its status line and to reconnect."""

    session_id: Name | None = None


class SetModel(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Names the model for the session's next model calls."""

    model: Name
    session_id: Name | None = None


class SetThinking(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Sets how much a session's model reasons before it answers; null leaves that to the model."""

    level: Thinking | None
    session_id: Name | None = None


class SetSteeringMode(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Sets how pending steers are emptied into turns."""

    mode: QueueMode
    session_id: Name | None = None


class SetFollowUpMode(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Sets how pending follow-ups are emptied into turns."""

    mode: QueueMode
    session_id: Name | None = None


class AttachSession(AnsweredBy["Attached"], frozen=True, kw_only=True):
    """Moves an idle session to another workspace; ``reason`` says why, for people and programs."""

    workspace: Folder
    session_id: Name | None = None
    reason: Annotated[str, Meta(min_length=1, max_length=REASON_CHARS_MAX)] | None = None


class OverrideWorkspace(AnsweredBy["WorkspaceOverride"], frozen=True, kw_only=True):
    """For so many seconds, calls that lead out of the workspace are asked about instead of refused.

    One that holds is replaced; 0 ends it.
    """

    ttl_seconds: Annotated[int, Meta(ge=0, le=OVERRIDE_SECONDS_MAX)]
    session_id: Name | None = None
