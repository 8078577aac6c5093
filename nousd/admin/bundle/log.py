"""The log's content in a support bundle: events, tool calls with their outcomes, artifacts.

Deltas are joined before redaction, also those of a message without an end, because the redactor does not
recognize pieces of a secret. For the same reason the last word of a truncated text is removed.
Everything is read through one connection, in the caller's transaction.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from nousd.admin.reading.deletions import EVENT_IS_KEPT
from nousd.errors import StoreError
from nousd.machine.projection.retention import STARTS, Line, join, owner_of
from nousd.store.sqlite import artifacts
from nousd.store.sqlite.migrations import MIGRATIONS
from nousd.wire.codec.decoding import decode_json
from nousd.wire.codec.envelope import decode_event
from nousd.wire.codec.upcasting import lift
from nousd.wire.events import DELTA_EVENTS, EVENTS
from nousd.wire.limits import TOOL_PREVIEW_CHARS_MAX

_EVENTS: Final = f"""
    SELECT seq, type, schema_version, line FROM events
    WHERE seq >= :first AND (:session_id IS NULL OR session_id = :session_id)
    AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
    AND {EVENT_IS_KEPT} ORDER BY seq
"""  # noqa: S608  the names are ours
_SIZES: Final = f"""
    SELECT seq, length(line) FROM events
    WHERE (:session_id IS NULL OR session_id = :session_id) AND {EVENT_IS_KEPT} ORDER BY seq DESC
"""  # noqa: S608


_SEQ_MAX: Final = 2**63 - 1


class Events:
    """The newest events of one session, or of all sessions, that fit into ``bytes_max``.

    ``omitted`` is the number of older events that do not fit; ``damaged`` has the numbers of unreadable
    ones.
    """

    def __init__(
        self, connection: apsw.Connection, session_id: str | None, *, bytes_max: int
    ) -> None:
        self._connection = connection
        self._session_id = session_id
        self.damaged: set[int] = set()
        self._first, self.omitted = self._beginning(bytes_max)
        self._joined, self._dropped = self._join()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each event in the current version, without the last words of truncated texts."""
        for line in self._lines(None):
            if line.seq not in self._dropped:
                current = self._joined.get(line.seq, line.line)
                event: dict[str, Any] = decode_json(current)
                yield _drop_cut_words(event)

    def _beginning(self, bytes_max: int) -> tuple[int, int]:
        first, room, omitted = _SEQ_MAX, bytes_max, 0
        values = {"session_id": self._session_id}
        for seq, size in self._connection.execute(_SIZES, values):
            room -= size
            if room >= 0:
                first = seq
            else:
                omitted += 1
        return first, omitted

    def _join(self) -> tuple[Mapping[int, bytes], frozenset[int]]:
        by_message: dict[tuple[str, str], list[Line]] = defaultdict(list)
        for line in self._lines(sorted(DELTA_EVENTS)):
            by_message[line.type, owner_of(line)].append(line)
        begun_owners = (
            {owner_of(line) for line in self._lines(sorted(STARTS))} if self.omitted else None
        )
        joined: dict[int, bytes] = {}
        dropped: set[int] = set()
        for (_, owner), lines in by_message.items():
            if begun_owners is not None and owner not in begun_owners:
                # The message's first deltas are missing: the rest may begin in the middle of a secret.
                dropped.update(line.seq for line in lines)
                continue
            for joined_line in join(reversed(lines)):
                joined[joined_line.seq] = joined_line.line
                dropped.update(joined_line.removed)
        return joined, frozenset(dropped)

    def _lines(self, types: list[str] | None) -> Iterator[Line]:
        values = {
            "first": self._first,
            "session_id": self._session_id,
            "types": None if types is None else msgspec.json.encode(types).decode(),
        }
        for seq, name, version, line in self._connection.execute(_EVENTS, values):
            current = _read(name, version, line)
            if current is None:
                self.damaged.add(seq)
            else:
                yield Line(seq, name, current)


def _read(name: str, version: int, line: bytes) -> bytes | None:
    """Return a line in the current version; None if it is not an event."""
    try:
        current = lift(line, version)
        decode_json(decode_event(current).payload, type=EVENTS[name])
    except (msgspec.MsgspecError, StoreError, ValueError, KeyError):
        return None
    return current


# --- truncated texts -------------------------------------------------------------------------


_LAST_WORD: Final = re.compile(r"(?<!\S)\S+\Z")

_CUT: Final = "[cut]"

_TRUNCATION_MARKS: Final = (("text", "text_ref"), ("result", "text_ref"), ("cause", "raw_ref"))
"""Key of a text, and the key whose presence marks it as truncated."""


def _drop_cut_words(value: Any) -> Any:
    """Return a decoded event without the last words of truncated texts."""
    if isinstance(value, list):
        return [_drop_cut_words(item) for item in value]
    if not isinstance(value, dict):
        return value
    shortened = {name: _drop_cut_words(item) for name, item in value.items()}
    for name, ref in _TRUNCATION_MARKS:
        if ref in shortened and isinstance(shortened.get(name), str):
            shortened[name] = _beginning(shortened[name])
    if "args_ref" in shortened:
        shortened["args"] = {
            name: _beginning(arg) if isinstance(arg, str) else arg
            for name, arg in shortened["args"].items()
        }
    # Earlier versions truncated results without a mark.
    if len(shortened.get("result") or "") == TOOL_PREVIEW_CHARS_MAX:
        shortened["result"] = _beginning(shortened["result"])
    return shortened


def _beginning(text: str) -> str:
    return _LAST_WORD.sub(_CUT, text)


# --- tool calls ------------------------------------------------------------------------------


_CALL_KEYS: Final = ("session_id", "run_id", "turn_id", "tool_name")
_DECISION_KEYS: Final = ("by", "reason")

_RECORD_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "tool_execution_start": (
        *_CALL_KEYS,
        "args",
        "args_ref",
        "args_bytes",
        "runtime_tool_call_id",
    ),
    "tool_call_requested": ("attempt",),
    "tool_call_approved": _DECISION_KEYS,
    "tool_call_denied": _DECISION_KEYS,
    "tool_call_started": (),
    "tool_call_completed": ("is_error", "duration_ms", "stop_reason", "artifact_id"),
    "tool_execution_end": (
        "result",
        "is_error",
        "executed",
        "artifact_id",
        "text_ref",
        "text_bytes",
    ),
}
"""Event type -> its keys that belong to the record of the call."""

_IMPLIED_FACTS: Final[dict[str, tuple[str, Any]]] = {
    "tool_call_approved": ("decision", "approved"),
    "tool_call_denied": ("decision", "denied"),
    "tool_call_started": ("started", True),
}
"""Event type -> the fact that follows from the event alone."""

_TIMES: Final = {"tool_execution_start": "begun_at", "tool_execution_end": "ended_at"}

_POLICY: Final = "tool_call_policy_evaluated"


class ToolCalls:
    """Collects the outcome of each tool call from events, in the order of the calls' first events."""

    def __init__(self) -> None:
        self.records: dict[str, dict[str, Any]] = {}

    def note(self, event: Mapping[str, Any]) -> None:
        """Add an event of the log to the record of its call."""
        name, payload = event["type"], event["payload"]
        if "origin" in payload:
            # A copy of an event of another session.
            return
        if name == _POLICY:
            opinion = {key: payload[key] for key in ("source", "decision", "reason")}
            self._record(payload).setdefault("policy", []).append(opinion)
        elif name in _RECORD_KEYS:
            record = self._record(payload)
            record.update({key: payload[key] for key in _RECORD_KEYS[name] if key in payload})
            if name in _IMPLIED_FACTS:
                record.update([_IMPLIED_FACTS[name]])
            if name in _TIMES:
                record[_TIMES[name]] = event["ts"]

    def _record(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        tool_call_id = payload["tool_call_id"]
        return self.records.setdefault(tool_call_id, {"tool_call_id": tool_call_id})


# --- artifacts -------------------------------------------------------------------------------


class StoredArtifact(NamedTuple):
    """An artifact that a session refers to; ``media_type`` is None if it does not exist."""

    id: str
    media_type: str | None
    size_bytes: int


_ARTIFACTS: Final = """
    SELECT DISTINCT uses.artifact_id, media_type, coalesce(size_bytes, 0)
    FROM artifact_uses AS uses LEFT JOIN artifacts ON artifacts.artifact_id = uses.artifact_id
    WHERE (:session_id IS NULL OR session_id = :session_id)
    AND session_id NOT IN (SELECT session_id FROM temp.doomed) ORDER BY created_at DESC
"""


def has_known_artifacts(connection: apsw.Connection) -> bool:
    """Return whether the log stores artifacts in the format of this version."""
    return bool(connection.pragma("user_version") == len(MIGRATIONS))


def list_artifacts(
    connection: apsw.Connection, session_id: str | None
) -> tuple[StoredArtifact, ...]:
    """Return the artifacts of one session, or of all sessions, newest first."""
    rows = connection.execute(_ARTIFACTS, {"session_id": session_id})
    return tuple(StoredArtifact(*row) for row in rows)


def text_of(connection: apsw.Connection, stored: StoredArtifact) -> str | None:
    """Return the text of an artifact; None if it is missing or not text."""
    found = artifacts.whole(connection, stored.id)
    if found is None or b"\0" in found.data:
        return None
    try:
        return found.data.decode()
    except UnicodeDecodeError:
        return None
