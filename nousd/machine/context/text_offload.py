"""Offloads texts that are too long for an event: cuts them on the way into the log, restores them on the
way out.

Decisions, runtimes, contexts and responses all work with whole texts. In the log, a text longer than
``EVENT_TEXT_BYTES_MAX`` is replaced by its beginning; ``text_ref`` names the artifact with the whole
text and ``text_bytes`` its size. Arguments whose JSON is longer are replaced by an excerpt, with
``args_ref`` and ``args_bytes``.

A restored text keeps its ``text_ref``, so that cutting it again neither hashes nor stores it.

The answer of a model is cut in its entry, but not in its ``message_end``, where v1 clients read it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET

from nousd.wire import events
from nousd.wire.codec.decoding import decode_json
from nousd.wire.codec.envelope import encode_json, scrub
from nousd.wire.limits import DELTA_BYTES_MAX, EVENT_TEXT_BYTES_MAX, TOOL_PREVIEW_CHARS_MAX
from nousd.wire.objects.entries import Entry, MessageEntry, ToolCall
from nousd.wire.objects.inputs import QueuedInput

TEXT_MEDIA_TYPE: Final = "text/plain; charset=utf-8"
ARGS_MEDIA_TYPE: Final = "application/json"

_ARGS_BYTES_OF_ENTRY: Final = 4 * EVENT_TEXT_BYTES_MAX
"""Maximum bytes of the arguments of all calls in one entry; further calls show none."""

_ARG_CHARS_SHOWN: Final = 1024
"""Characters shown of each argument if the arguments are too long together."""

_SHORT_CHARS_MAX: Final = EVENT_TEXT_BYTES_MAX // 4
"""A text with at most this many characters is short: UTF-8 has at most four bytes per character."""

_BYTES_OF_CHARACTER_MAX: Final = len(r"\u0000")
"""Maximum bytes of one character in JSON."""

ArtifactData = Mapping[str, bytes | None]
"""Artifact id -> its bytes; None for one that does not exist."""

T = TypeVar("T", MessageEntry, QueuedInput)


# --- cutting ---------------------------------------------------------------------------------


class CutEvents(msgspec.Struct, frozen=True):
    """Events in their logged form, and the texts that were cut: artifact id -> media type and bytes."""

    events: tuple[events.Event, ...]
    artifacts: Mapping[str, tuple[str, bytes]]


def cut_long_texts(decided: Sequence[events.Event]) -> CutEvents:
    """Return events in which every long text is cut."""
    if _SHORTEN.keys().isdisjoint(map(type, decided)):
        return CutEvents(tuple(decided), {})
    cutter = _Cutter()
    short = []
    for event in decided:
        shorten = _SHORTEN.get(type(event))
        short.append(event if shorten is None else shorten(cutter, event))
    return CutEvents(tuple(short), cutter.artifacts)


def beginning(text: str) -> str:
    """Return the beginning of a text that an event contains; no character is split."""
    if len(text) <= EVENT_TEXT_BYTES_MAX and text.isascii():
        return text
    return _utf8(text[:EVENT_TEXT_BYTES_MAX])[:EVENT_TEXT_BYTES_MAX].decode(errors="ignore")


def deltas(text: str) -> Iterator[str]:
    """Yield a text in pieces that each fit into an event, including their JSON escapes."""
    start = 0
    while start < len(text):
        piece = text[start : start + DELTA_BYTES_MAX]
        # A short piece always fits.
        while len(piece) * _BYTES_OF_CHARACTER_MAX > DELTA_BYTES_MAX:
            size = len(encode_json(piece)) - len('""')
            if size <= DELTA_BYTES_MAX:
                break
            piece = piece[: len(piece) * DELTA_BYTES_MAX // size]
        yield piece
        start += len(piece)


def is_long(text: str) -> bool:
    """Return whether a text is too long for an event."""
    if len(text) <= _SHORT_CHARS_MAX:
        return False
    if len(text) > EVENT_TEXT_BYTES_MAX or text.isascii():
        return len(text) > EVENT_TEXT_BYTES_MAX
    return len(_utf8(text)) > EVENT_TEXT_BYTES_MAX


def artifact_id_of(data: bytes) -> str:
    """Return the id of the artifact that holds these bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _utf8(text: str) -> bytes:
    return scrub(text).encode()


class _Cutter:
    """Cuts the events of one batch; a text that occurs in several of them is hashed once."""

    def __init__(self) -> None:
        self.artifacts: dict[str, tuple[str, bytes]] = {}
        self._refs: dict[str, dict[str, Any]] = {}

    def text_of(self, holder: Any) -> Any:
        """Cut the ``text`` of an event, entry or input."""
        text = holder.text
        if text is UNSET or not is_long(text):
            return holder
        return msgspec.structs.replace(
            holder, text=beginning(text), **self._offload_text(holder, text)
        )

    def result_of(self, end: events.ToolExecutionEnd) -> events.Event:
        text = end.result
        if len(text) <= TOOL_PREVIEW_CHARS_MAX:
            return end
        return msgspec.structs.replace(
            end, result=text[:TOOL_PREVIEW_CHARS_MAX], **self._offload_text(end, text)
        )

    def own_result_of(self, completed: events.ToolCallCompleted) -> events.Event:
        if completed.result is UNSET or len(completed.result) <= TOOL_PREVIEW_CHARS_MAX:
            return completed
        text = completed.result
        return msgspec.structs.replace(
            completed, result=text[:TOOL_PREVIEW_CHARS_MAX], **self._offload_text(completed, text)
        )

    def args_of(self, call: Any) -> Any:
        """Cut the ``args`` of a call in an event."""
        (short,) = self._calls_of((call,), EVENT_TEXT_BYTES_MAX)
        return short

    def args_if_any(self, event: events.ToolCallPolicyEvaluated) -> events.Event:
        short: events.Event = event if event.args is UNSET else self.args_of(event)
        return short

    def _calls_of(self, calls: Iterable[Any], room: int) -> Iterator[Any]:
        """Cut the ``args`` of calls so that each one, and all together, fit."""
        for call in calls:
            json = encode_json(call.args)
            short = call
            if len(json) > min(room, EVENT_TEXT_BYTES_MAX):
                short = self._with_short_args(call, json, room)
            room -= min(room, len(json), EVENT_TEXT_BYTES_MAX)
            yield short

    def _with_short_args(self, call: Any, json: bytes, room: int) -> Any:
        refs: dict[str, Any] = {}
        if call.args_ref is UNSET:
            refs = {
                "args_ref": self._store_artifact(ARGS_MEDIA_TYPE, json),
                "args_bytes": len(json),
            }
        shown = _shorten_args(call.args, min(room, EVENT_TEXT_BYTES_MAX))
        return msgspec.structs.replace(call, args=shown, **refs)

    def entry_of(self, event: events.EntryAppended) -> events.Event:
        entry = event.entry
        if not isinstance(entry, MessageEntry):
            return event
        short: MessageEntry = self.text_of(entry)
        if short.tool_calls is not UNSET:
            calls = tuple(self._calls_of(short.tool_calls, _ARGS_BYTES_OF_ENTRY))
            short = msgspec.structs.replace(short, tool_calls=calls)
        return msgspec.structs.replace(event, entry=short)

    def inputs_of(self, event: events.QueueUpdate) -> events.Event:
        for queued in event.inputs:
            if len(queued.text) > _SHORT_CHARS_MAX:
                inputs = tuple([self.text_of(each) for each in event.inputs])
                return msgspec.structs.replace(event, inputs=inputs)
        return event  # the usual case, thousands of times per second

    def end_of_user(self, event: events.MessageEnd) -> events.Event:
        # Only a model's message has a stop reason.
        short: events.Event = self.text_of(event) if event.stop_reason is UNSET else event
        return short

    def _offload_text(self, holder: Any, text: str) -> dict[str, Any]:
        if holder.text_ref is not UNSET:
            return {}
        if text not in self._refs:
            data = _utf8(text)
            ref = self._store_artifact(TEXT_MEDIA_TYPE, data)
            self._refs[text] = {"text_ref": ref, "text_bytes": len(data)}
        return self._refs[text]

    def _store_artifact(self, media_type: str, data: bytes) -> str:
        artifact_id = artifact_id_of(data)
        self.artifacts[artifact_id] = (media_type, data)
        return artifact_id


def _shorten_args(args: Mapping[str, Any], room: int) -> dict[str, Any]:
    """Return the arguments that are short enough, and the beginnings of strings, as far as they fit."""
    shown: dict[str, Any] = {}
    for name, value in args.items():
        part = value[:_ARG_CHARS_SHOWN] if isinstance(value, str) else value
        size = len(encode_json({name: part}))
        if size <= room:
            shown[name] = part
            room -= size
    return shown


_SHORTEN: Final[dict[type[events.Event], Callable[[_Cutter, Any], events.Event]]] = {
    events.QueueUpdate: _Cutter.inputs_of,
    events.MessageStart: _Cutter.text_of,
    events.MessageEnd: _Cutter.end_of_user,
    events.EntryAppended: _Cutter.entry_of,
    events.ToolExecutionStart: _Cutter.args_of,
    events.ToolExecutionEnd: _Cutter.result_of,
    events.InputHandled: _Cutter.text_of,
    events.ToolCallRequested: _Cutter.args_of,
    events.ToolCallCompleted: _Cutter.own_result_of,
    events.ToolCallPolicyEvaluated: _Cutter.args_if_any,
    events.PermissionRequested: _Cutter.args_of,
}
"""event -> the function that cuts it; texts of other events are bounded where they are created."""


# --- restoring -------------------------------------------------------------------------------


def refs_in(holders: Iterable[Entry | QueuedInput]) -> dict[str, int]:
    """Return the artifacts needed to restore entries or inputs: artifact id -> size in bytes."""
    refs: dict[str, int] = {}
    for holder in holders:
        # The usual type first: ``isinstance`` takes ten times as long to return False for a struct.
        if isinstance(holder, MessageEntry):
            if holder.text_ref is not UNSET:
                refs[holder.text_ref] = holder.text_bytes or 0
            if holder.tool_calls is not UNSET:
                refs |= _refs_of_calls(holder.tool_calls)
        elif isinstance(holder, QueuedInput) and holder.text_ref is not UNSET:
            refs[holder.text_ref] = holder.text_bytes or 0
    return refs


def _refs_of_calls(calls: Iterable[ToolCall]) -> dict[str, int]:
    return {call.args_ref: call.args_bytes or 0 for call in calls if call.args_ref is not UNSET}


def whole_entry(entry: Entry, artifact_data: ArtifactData) -> Entry:
    """Restore the text and call arguments of an entry; if an artifact is missing, they stay cut."""
    if not isinstance(entry, MessageEntry) or not refs_in((entry,)):
        return entry
    entry = _with_text(entry, artifact_data)
    if entry.tool_calls is UNSET:
        return entry
    calls = tuple(_with_args(call, artifact_data) for call in entry.tool_calls)
    return msgspec.structs.replace(entry, tool_calls=calls)


def short_entry(entry: Entry) -> Entry:
    """Cut a restored entry again, to its logged form."""
    short = _Cutter().entry_of(events.EntryAppended(session_id="", entry=entry))
    assert isinstance(short, events.EntryAppended)
    return short.entry


def is_whole(entry: Entry) -> bool:
    """Return whether an entry has its whole text."""
    if not isinstance(entry, MessageEntry) or entry.text_ref is UNSET:
        return True
    return len(_utf8(entry.text)) >= (entry.text_bytes or 0)


def whole_inputs(
    inputs: Sequence[QueuedInput], artifact_data: ArtifactData
) -> tuple[QueuedInput, ...]:
    """Restore the texts of inputs; if an artifact is missing, the text stays cut."""
    return tuple(_with_text(queued, artifact_data) for queued in inputs)


def _with_text(holder: T, artifact_data: ArtifactData) -> T:
    data = artifact_data.get(holder.text_ref) if isinstance(holder.text_ref, str) else None
    return holder if data is None else msgspec.structs.replace(holder, text=data.decode())


def _with_args(call: ToolCall, artifact_data: ArtifactData) -> ToolCall:
    data = artifact_data.get(call.args_ref) if isinstance(call.args_ref, str) else None
    return call if data is None else msgspec.structs.replace(call, args=decode_json(data))


def as_logged(logged: Entry, decided: Entry) -> Entry:
    """Return a logged entry with the whole texts of the original, and with the ids of its artifacts."""
    if not isinstance(logged, MessageEntry) or not isinstance(decided, MessageEntry):
        return logged
    if logged.tool_calls is UNSET or decided.tool_calls is UNSET:
        return msgspec.structs.replace(logged, text=decided.text)
    calls = tuple(
        msgspec.structs.replace(short, args=original.args)
        for short, original in zip(logged.tool_calls, decided.tool_calls, strict=True)
    )
    return msgspec.structs.replace(logged, text=decided.text, tool_calls=calls)
