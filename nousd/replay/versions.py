"""The facts that logs of earlier versions lack, which replays of such logs do not compare.

Upcasting never adds events to an old log (``wire.codec.upcasting``), but the current loop, which replays
its runs, logs more. The version is that of a run's event lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET

from nousd.errors import without_category
from nousd.machine.context import text_offload
from nousd.wire import events
from nousd.wire.codec.upcasting import EVENT_SCHEMA_VERSION
from nousd.wire.events import Event
from nousd.wire.objects.entries import MessageEntry

_EVENTS_SINCE_2: Final = (
    events.ModelInput,
    events.ToolCallRequested,
    events.ToolCallPolicyEvaluated,
    events.ToolCallApproved,
    events.ToolCallDenied,
    events.ToolCallCompleted,
)

_KEYS_SINCE_3: Final[Mapping[str, frozenset[str]]] = {
    "entry_appended": frozenset({"provider"}),
    "tool_execution_end": frozenset({"text_bytes", "text_ref"}),
    "usage_reported": frozenset({"provider", "purpose"}),
    "model_input": frozenset(
        {
            "context_window",
            "entries",
            "input_hash",
            "messages",
            "omitted",
            "omitted_count",
            "provider",
            "purpose",
            "rest_ref",
            "sources",
            "strategy",
            "thinking",
            "tokens_estimated",
        }
    ),
}
"""Event type -> keys that are new or have a new meaning; for an entry, keys inside it."""

_CALL_KEYS: Final = frozenset({"attempt", "input_hash"})

_KEYS_SINCE_4: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(
        ("tool_execution_start", "tool_execution_update", "tool_execution_end"), _CALL_KEYS
    ),
    **dict.fromkeys(
        (
            "tool_call_requested",
            "tool_call_policy_evaluated",
            "tool_call_approved",
            "tool_call_denied",
            "tool_call_started",
        ),
        frozenset({"input_hash"}),
    ),
    "tool_call_completed": frozenset(
        {"input_hash", "executed_by", "execution_env", "policy_snapshot", "sandbox"}
    ),
}


_KEYS_ADDED_IN_4: Final[Mapping[str, frozenset[str]]] = {
    "queue_update": frozenset({"queue_revision"}),
    "tool_call_started": frozenset({"executed_by", "permission_mode"}),
    "tool_call_completed": frozenset({"executed_by", "permission_mode"}),
}
"""Event type -> keys that lines of version 4 may lack; in the end of a call, if it was cut off."""


def can_be_logged(event: Event, version: int) -> bool:
    """Return whether a log of that version could contain an event."""
    if version < 2 and isinstance(event, _EVENTS_SINCE_2):
        return False
    if version < 3 and isinstance(event, events.ModelInput):
        return event.purpose != "summary"
    if version < 3 and isinstance(event, events.UsageReported):
        return event.purpose != "summary" and event.usage is not UNSET
    return True


def list_unlogged_keys(version: int) -> Mapping[str, frozenset[str]]:
    """Return, by event type, the keys that a log of that version lacks or uses with another meaning."""
    since = [keys for first, keys in ((3, _KEYS_SINCE_3), (4, _KEYS_SINCE_4)) if version < first]
    return {
        type_: frozenset().union(*(keys.get(type_, frozenset()) for keys in since))
        for type_ in {type_ for keys in since for type_ in keys}
    }


def find_missing_keys(line: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys that a line of version 4 lacks, both at the top level and in its objects."""
    present = set(line).union(*(value for value in line.values() if isinstance(value, dict)))
    return _KEYS_ADDED_IN_4.get(line["type"], frozenset()) - present


def drop_unlogged_category(recorded: Iterable[Event], played: Iterable[Event]) -> tuple[Event, ...]:
    """Return a replay's events without the category of a failed model call, if the log lacks it."""
    played = tuple(played)
    failed = next((each for each in recorded if isinstance(each, events.Error)), None)
    category = next((each.category for each in played if isinstance(each, events.Error)), UNSET)
    if failed is None or failed.category is not UNSET or category is UNSET:
        return played
    return tuple(_without_category(each, category) for each in played)


def _without_category(event: Event, category: str) -> Event:
    match event:
        case events.Error():
            words = without_category(category, event.cause)
            return msgspec.structs.replace(event, cause=words, category=UNSET)
        case events.AgentEnd(error=str(error)):
            words = without_category(category, error)
            return msgspec.structs.replace(event, error=words, category=UNSET)
        case events.EntryAppended(entry=MessageEntry(error=str(error)) as entry):
            cut = msgspec.structs.replace(entry, error=without_category(category, error))
            return msgspec.structs.replace(event, entry=cut)
    return event


def offload_texts(logged: Iterable[Event], version: int) -> tuple[Event, ...]:
    """Return events with long texts truncated; earlier versions logged them whole."""
    events = tuple(logged)
    return text_offload.cut_long_texts(events).events if version < 3 else events


def note_on(version: int) -> tuple[str, ...]:
    """Return a note for people about the parts that are not compared."""
    is_earlier = version < EVENT_SCHEMA_VERSION
    return (f"not compared: what version {version} of the log did not tell",) * is_earlier
