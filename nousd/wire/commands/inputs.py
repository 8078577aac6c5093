"""The commands that hand texts to a session, look after those that wait, and stop and resume its runs.

What becomes of a text that was accepted is in ``inputs``. In which order texts are consumed is not known
here (``nousd.machine.session.queue``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from nousd.wire.commands.base import AnsweredBy
from nousd.wire.limits import ATTACHMENTS_MAX, PATH_CHARS_MAX, TOOLS_MAX
from nousd.wire.objects.entries import Sampling
from nousd.wire.objects.run_options import ToolChoice
from nousd.wire.objects.words import Name, QueueKind, Text

if TYPE_CHECKING:
    from nousd.wire.responses import Accepted, Queue, Result  # noqa: F401  in quotes below


class AttachmentGiven(msgspec.Struct, frozen=True, kw_only=True):
    """A file that goes with a text: ``data`` (base64), a ``path`` in the workdir, or an artifact.

    Exactly one of the three. ``media_type`` is required with ``data``; otherwise the file's suffix, or
    the artifact, decides it. ``name`` is for people and models; with ``path`` it is the file's own.
    """

    media_type: Name | None = None
    data: bytes | None = None
    path: Annotated[str, Meta(min_length=1, max_length=PATH_CHARS_MAX)] | None = None
    artifact_id: Name | None = None
    name: Name | None = None


AttachmentsGiven = Annotated[tuple[AttachmentGiven, ...], Meta(max_length=ATTACHMENTS_MAX)]


class Prompt(AnsweredBy["Accepted | Result"], frozen=True, kw_only=True):
    """Starts a run. ``wait: false`` answers ``accepted`` at once, ``true`` the ``result``.

    ``text_ref``: the artifact with the whole of what ``text`` is the beginning of.
    ``reuse_appended``: a text that was appended last and not answered is not repeated.
    ``strict_resend``: the same ``client_message_id`` with another text is refused. ``client_id`` and the
    three behind it are shown with the run; ``tools`` and what follows hold for this run alone.
    """

    text: Text
    text_ref: Name | None = None
    wait: bool = True
    leaf_id: Name | None = None
    session_id: Name | None = None
    client_message_id: Name | None = None
    attachments: AttachmentsGiven = ()
    reuse_appended: bool = False
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


class AppendMessage(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Stores a message of the user without starting a run; a run that is going on is not disturbed."""

    text: Text
    text_ref: Name | None = None
    session_id: Name | None = None
    client_message_id: Name | None = None
    attachments: AttachmentsGiven = ()


class Steer(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Hands the running run a text that goes before whatever it would do next."""

    text: Text
    text_ref: Name | None = None
    session_id: Name | None = None
    expected_run_id: Name | None = None
    client_message_id: Name | None = None
    attachments: AttachmentsGiven = ()


class FollowUp(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Hands the running run a text for when it would otherwise end."""

    text: Text
    text_ref: Name | None = None
    session_id: Name | None = None
    expected_run_id: Name | None = None
    client_message_id: Name | None = None
    attachments: AttachmentsGiven = ()


class Abort(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Stops the run at once, empties its session's queues and returns their texts.

    ``keep_queue``: steers and follow-ups go on waiting.
    """

    session_id: Name | None = None
    expected_run_id: Name | None = None
    keep_queue: bool = False


class Resume(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Starts a run on what is pending, or on an unanswered leaf."""

    session_id: Name | None = None


class GetQueue(AnsweredBy["Queue"], frozen=True, kw_only=True):
    """Reads the inputs that were accepted and not yet consumed, in the order they will be."""

    session_id: Name | None = None


class ClearQueue(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Takes back pending inputs (all, or of one kind) and returns their texts."""

    session_id: Name | None = None
    kind: QueueKind | None = None


class Promote(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Turns a pending follow-up into a steer."""

    input_id: Name
    session_id: Name | None = None
