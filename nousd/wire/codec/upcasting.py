"""Upcast event lines of earlier versions to the current version.

A line in the log is never rewritten for a new version (only joined deltas are written in the current
form). It keeps the version that wrote it (the column ``schema_version``) and is upcast each time it is
read, one version at a time, to the line that the current code would have written. So readers know one
form of each event. No event is invented: what an earlier version did not log stays missing
(protocol/semantics/compatibility.md).

To change events: a new type or a new optional key needs nothing here. A key that becomes required, or
changes its meaning, needs the next ``EVENT_SCHEMA_VERSION``, a step in ``STEPS``, a store of the
previous version in ``fixtures/stores/``, and a migration, even if an empty one, so that an older daemon
refuses the file when it opens it and not in the middle of reading.

The other JSON in the store (the bodies of entries and inputs, the settings of sessions) has no version
and is not upcast: its structs (``wire.objects.entries``, ``wire.objects.inputs.QueuedInput``) only ever
gain optional fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from nousd.errors import StoreError, StoreTooNew
from nousd.wire.codec.decoding import json_decoder
from nousd.wire.codec.envelope import EventLine, decode_event

EVENT_SCHEMA_VERSION: Final = 4
"""The version of the event lines that this code writes."""

Payload = dict[str, msgspec.Raw]
"""A payload with raw values, so that a step changes only the keys it names."""

Step = Callable[[Payload], Payload]


def lift(line: bytes, version: int) -> bytes:
    """Return the line as the current version would have written it, with the same id, type and time.

    Args:
        line: a whole event line with its LF, as that version wrote it.

    Raises:
        StoreTooNew: a later version wrote it.
        StoreError: the version never existed.
    """
    if version == EVENT_SCHEMA_VERSION:
        return line
    event = decode_event(line)
    if version > EVENT_SCHEMA_VERSION:
        raise StoreTooNew(
            f"{event.id} has schema version {version}, this nousd knows up to "
            f"{EVENT_SCHEMA_VERSION}: it was written by a newer version"
        )
    if version not in STEPS:
        raise StoreError(f"{event.id} has schema version {version}, which there never was")
    steps = [step for at in range(version, EVENT_SCHEMA_VERSION) if (step := _step(event, at))]
    if not steps:
        return line
    payload = _payload_decoder.decode(event.payload)
    for step in steps:
        payload = step(payload)
    return _line(event, payload)


def _step(event: EventLine, version: int) -> Step | None:
    return STEPS[version].get(event.type)


def _line(event: EventLine, payload: Payload) -> bytes:
    keys = {"v": "1", "id": event.id, "type": event.type, "payload": payload, "ts": event.ts}
    return msgspec.json.encode(keys) + b"\n"


def _first_attempt(payload: Payload) -> Payload:
    """Add ``attempt``: version 1 never repeated a call."""
    return {**payload, "attempt": msgspec.Raw(b"1")}


def _first_contract(payload: Payload) -> Payload:
    """Add ``contract_version``: version 2 had only one contract."""
    return {**payload, "contract_version": msgspec.Raw(b'"1"')}


STEPS: Final[dict[int, dict[str, Step]]] = {
    1: {"tool_call_started": _first_attempt},
    2: {"session_created": _first_contract},
    3: {},  # the keys that version 4 added to calls are optional
}
"""version -> type -> function from a payload of this version to one of the next."""

_payload_decoder: Final = json_decoder(Payload)
