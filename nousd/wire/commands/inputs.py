"""Commands that send texts to a session, manage its queue, and stop and resume its runs.

``nousd.machine.session.queue`` defines the order in which texts are consumed.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from nousd.wire.commands.base import AnsweredBy
from nousd.wire.limits import ATTACHMENTS_MAX, PATH_CHARS_MAX, TOOLS_MAX
from nousd.wire.objects.entries import Sampling
from nousd.wire.objects.field_types import Name, QueueKind, QueueRevision, Text
from nousd.wire.objects.run_options import ToolChoice
from nousd.wire.responses import Accepted, Queue, Result


class AttachmentGiven(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a client sends with a text: exactly one of ``data``, ``path`` and ``artifact_id``."""

    media_type: Name | None = None
    data: bytes | None = None
    path: Annotated[str, Meta(min_length=1, max_length=PATH_CHARS_MAX)] | None = None
    artifact_id: Name | None = None
    name: Name | None = None


AttachmentsGiven = Annotated[tuple[AttachmentGiven, ...], Meta(max_length=ATTACHMENTS_MAX)]


class Prompt(AnsweredBy[Accepted | Result], frozen=True, kw_only=True):
    """Start a run; ``wait`` selects whether the response comes at once or after the run has ended."""

    text: Text
    text_ref: Name | None = None
    wait: bool = True
    leaf_id: Name | None = None
    session_id: Name | None = None
    client_message_id: Name | None = None
    attachments: AttachmentsGiven = ()
    reuse_appended: bool = False
    require_appended: bool = False
    strict_resend: bool = False
    client_id: Name | None = None
    agent_id: Name | None = None
    agent_profile: Name | None = None
    correlation_id: Name | None = None
    tools: Annotated[tuple[Name, ...], Meta(max_length=TOOLS_MAX)] | None = None
    model: Name | None = None
    provider: Name | None = None
    sampling: Sampling | None = None
    tool_choice: ToolChoice | None = None


class AppendMessage(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Store a user message without starting a run or disturbing the active one."""

    text: Text
    text_ref: Name | None = None
    session_id: Name | None = None
    client_message_id: Name | None = None
    attachments: AttachmentsGiven = ()
    client_id: Name | None = None


class Steer(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Steer the active run: deliver a text before its next step."""

    text: Text
    text_ref: Name | None = None
    session_id: Name | None = None
    expected_run_id: Name | None = None
    client_message_id: Name | None = None
    attachments: AttachmentsGiven = ()
    client_id: Name | None = None


class FollowUp(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Queue a text that the active run handles when it would otherwise end."""

    text: Text
    text_ref: Name | None = None
    session_id: Name | None = None
    expected_run_id: Name | None = None
    client_message_id: Name | None = None
    attachments: AttachmentsGiven = ()
    client_id: Name | None = None


class Abort(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Abort the run, clear its session's queue and return the cleared texts."""

    session_id: Name | None = None
    expected_run_id: Name | None = None
    keep_queue: bool = False
    client_id: Name | None = None


class Resume(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Start a run on the pending inputs, or on a leaf without a finished answer."""

    session_id: Name | None = None
    client_id: Name | None = None


class GetQueue(AnsweredBy[Queue], frozen=True, kw_only=True):
    """Read the pending inputs in the order in which turns will consume them."""

    session_id: Name | None = None


class ClearQueue(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Remove pending inputs, all or of one kind, and return their texts."""

    session_id: Name | None = None
    kind: QueueKind | None = None
    client_id: Name | None = None


class Promote(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Turn a pending follow-up into a steer of the active run."""

    input_id: Name
    session_id: Name | None = None
    client_id: Name | None = None


class EditQueued(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Replace the text of a pending input and, if given, its attachments; it keeps its position."""

    input_id: Name
    text: Text
    text_ref: Name | None = None
    attachments: AttachmentsGiven | None = None
    queue_revision: QueueRevision | None = None
    session_id: Name | None = None
    client_id: Name | None = None


class MoveQueued(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Move a pending input before another of its kind, or after all of them."""

    input_id: Name
    before_input_id: Name | None = None
    queue_revision: QueueRevision | None = None
    session_id: Name | None = None
    client_id: Name | None = None


class RemoveQueued(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Remove one pending input and return it."""

    input_id: Name
    queue_revision: QueueRevision | None = None
    session_id: Name | None = None
    client_id: Name | None = None
