"""Compares two lists of a run's events in everything that must be equal.

Ids become names in the order of their first appearance, times and measurements are dropped, and
adjacent deltas are joined. Keys that a log does not contain are not compared, but reported.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from nousd.replay.recorded import RecordedRun
from nousd.replay.versions import (
    can_be_logged,
    drop_unlogged_category,
    find_missing_keys,
    list_unlogged_keys,
    note_on,
    offload_texts,
)
from nousd.wire.events import DELTA_EVENTS, EVENT_TYPES, Event

Line = dict[str, Any]
"""The compared part of an event: its ``type`` and the keys of its payload."""

CONTEXT_LINES: Final = 3
DIFF_LINES_MAX: Final = 200

_VARIABLE_KEYS: Final = frozenset(
    {
        "accepted_at",
        "cost_usd",
        "created_at",
        "duration_ms",
        "expires_at",
        "first_token_ms",
        "input_ref",
        "joined_from",
        "requested_at",
    }
)
"""Keys that depend on time, on prices, or on the start of a stored input's chain."""

_ARGUMENT_KEYS: Final = frozenset({"input_hash"})
"""Keys that depend on arguments completed by the tool, which does not exist in a replay."""

_ID_KINDS: Final[Mapping[str, str]] = {
    "entry_id": "entry",
    "first_kept_entry_id": "entry",
    "id": "entry",
    "input_id": "input",
    "leaf_id": "entry",
    "message_id": "entry",
    "parent_id": "entry",
    "promoted_run_id": "run",
    "run_id": "run",
    "session_id": "session",
    "tool_call_id": "entry",
}
"""Key -> kind of its id. The ids of a tool call and its result begin with their message's id."""


_OPAQUE: Final = frozenset({"args", "data"})
"""Keys whose values come from a model, so that keys in them have no meaning."""

_SHOWN_CHARS_MAX: Final = 400


class Comparison(msgspec.Struct, frozen=True):
    """The result of a comparison.

    Args:
        events: the number of compared events; adjacent deltas count as one.
        difference: lines of a diff from recorded to played, around the first difference.
        notes: sentences about the parts that were not compared.
    """

    events: int
    difference: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        return not self.difference


def compare_run(run: RecordedRun, played: Sequence[Event], *, inputs_known: bool) -> Comparison:
    """Compare a run with its replay.

    Args:
        inputs_known: whether the log contains the models' inputs in addition to the transcript.
    """
    recorded = offload_texts(run.events, run.version)
    replayed = drop_unlogged_category(
        recorded, (event for event in played if can_be_logged(event, run.version))
    )
    left_out = dict(list_unlogged_keys(run.version))
    notes = note_on(run.version)
    if not inputs_known and not notes:
        left_out = {"model_input": _PROMPT_KEYS}
        notes = ("not compared: what follows from the system prompt, which is gone",)
    recorded_lines, replayed_lines = (
        [
            _drop_keys(line, left_out.get(line["type"], frozenset()))
            for line in normalise_events(events)
        ]
        for events in (recorded, replayed)
    )
    for at, (line, other) in enumerate(zip(recorded_lines, replayed_lines, strict=False)):
        if line["type"] == other["type"]:
            replayed_lines[at] = _drop_keys(other, find_missing_keys(line))
    return Comparison(
        len(recorded_lines), tuple(_difference(recorded_lines, replayed_lines)), notes
    )


_PROMPT_KEYS: Final = frozenset({"input_hash", "rest_ref", "sources", "tokens_estimated"})
"""Keys of an input that depend on more than the messages."""


def _drop_keys(line: Line, left_out: frozenset[str]) -> Line:
    return {
        key: {inner: item for inner, item in value.items() if inner not in left_out}
        if isinstance(value, dict)
        else value
        for key, value in line.items()
        if key not in left_out
    }


# --- normalization ---------------------------------------------------------------------------


def normalise_events(all_events: Iterable[Event]) -> list[Line]:
    """Return events without ids, times and the boundaries of deltas."""
    names = _Names()
    return [
        {"type": EVENT_TYPES[type(event)], **names.in_(msgspec.to_builtins(event))}
        for event in join_deltas(all_events)
    ]


def join_deltas(all_events: Iterable[Event]) -> Iterator[Event]:
    """Yield events with adjacent deltas of one message or tool call as one."""
    open_: Any = None
    for event in all_events:
        next_: Any = event
        if open_ is not None and _is_same_delta(open_, next_):
            open_ = msgspec.structs.replace(open_, delta=open_.delta + next_.delta)
            continue
        if open_ is not None:
            yield open_
        open_ = next_
    if open_ is not None:
        yield open_


def _is_same_delta(one: Any, other: Any) -> bool:
    return (
        type(one) is type(other)
        and EVENT_TYPES[type(one)] in DELTA_EVENTS
        and all(getattr(one, key, None) == getattr(other, key, None) for key in _DELTA_OF)
    )


_DELTA_OF: Final = ("message_id", "tool_call_id", "stream")


class _Names:
    """Replaces each id by its kind and a number in the order of appearance."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def in_(self, values: Mapping[str, Any]) -> Line:
        left_out = _VARIABLE_KEYS | _ARGUMENT_KEYS if "tool_call_id" in values else _VARIABLE_KEYS
        return {
            key: self._value(key, value) for key, value in values.items() if key not in left_out
        }

    def _value(self, key: str, value: Any) -> Any:
        if key in _OPAQUE:
            return value
        if isinstance(value, dict):
            return self.in_(value)
        if isinstance(value, list | tuple):
            inner = "input_id" if key == "input_ids" else ""
            return [self._value(inner, item) for item in value]
        if key in _ID_KINDS and isinstance(value, str):
            return self._name(_ID_KINDS[key], value)
        return value

    def _name(self, kind: str, value: str) -> str:
        # The ids of a tool call and its result begin with their message's id and a dot.
        base, dot, rest = value.partition(".")
        if base not in self._names:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._names[base] = f"{kind}-{self._counts[kind]}"
        return f"{self._names[base]}{dot}{rest}"


# --- report ----------------------------------------------------------------------------------


def _difference(recorded: Sequence[Line], played: Sequence[Line]) -> Iterator[str]:
    """Yield a diff around the first different event; nothing if all are equal."""
    if recorded == played:
        return
    first = next(
        (at for at, pair in enumerate(zip(recorded, played, strict=False)) if pair[0] != pair[1]),
        min(len(recorded), len(played)),
    )
    begin = max(0, first - CONTEXT_LINES)
    yield f"the first difference is in event {first + 1} of {len(recorded)}"
    recorded_lines, played_lines = (
        [text for line in lines[begin : first + CONTEXT_LINES + 1] for text in _format_line(line)]
        for lines in (recorded, played)
    )
    lines = difflib.unified_diff(
        recorded_lines, played_lines, "recorded", "played", n=CONTEXT_LINES, lineterm=""
    )
    for count, text in enumerate(lines):
        if count == DIFF_LINES_MAX:
            yield "..."
            return
        yield text


def _format_line(line: Line) -> Iterator[str]:
    yield line["type"]
    for key, value in _flat(line):
        text = json.dumps(value, ensure_ascii=False)
        if len(text) > _SHOWN_CHARS_MAX:
            text = f"{text[:_SHOWN_CHARS_MAX]}... ({len(text)} characters, {_hash_of(text)})"
        yield f"  {key}: {text}"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and key not in _OPAQUE:
            yield from _flat(value, f"{prefix}{key}.")
        elif prefix or key != "type":
            yield f"{prefix}{key}", value


def _hash_of(text: str) -> str:
    """Return a short hash of a text that is shown truncated."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
