"""Finds in what the answers and events of two daemons differ; ids, times and the order of keys may."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from functools import partial
from typing import Any, Final, NamedTuple

from tests.harness.v1_recordings import Line, Names, Played, Recording, is_id

ABSENT: Final = "(absent)"
"""The value of what only one of the daemons has."""

_TIMES: Final = frozenset({"ts", "created_at"})


class Difference(NamedTuple):
    """One thing in which the two differ.

    Args:
        recording: its name.
        where: such as ``message_end.text`` (of an event), ``result.output`` (of an answer),
            ``result.events.message_end.text`` (of an event within it), ``messages.messages[assistant]``
            (one that only one of them has).
        recorded: what an older daemon had there, or ABSENT.
        ours: what there is today, or ABSENT.
    """

    recording: str
    where: str
    recorded: Any
    ours: Any


def differences(recording: Recording, played: Played) -> Iterator[Difference]:
    """Yield the differences in a recording that was played again."""
    compared = _Comparison(recording.name, played.names)
    for exchange, answer in zip(recording.exchanges, played.answers, strict=True):
        recorded = {key: value for key, value in exchange.answer.items() if key != "payload"}
        ours = {key: value for key, value in answer.items() if key != "payload"}
        yield from compared.objects(exchange.answer["type"], recorded, ours)
        yield from compared.objects(
            exchange.answer["type"], exchange.answer["payload"], answer["payload"]
        )
    if recording.events:  # Some were recorded on the command socket only.
        yield from compared.events("", recording.events, played.events)


class _Comparison:
    def __init__(self, name: str, names: Names) -> None:
        self._differ = partial(Difference, name)
        self._names = names

    def objects(self, where: str, recorded: Line, ours: Line) -> Iterator[Difference]:
        for key in sorted(recorded.keys() | ours.keys()):
            there = f"{where}.{key}"
            if key not in ours or key not in recorded:
                yield self._differ(there, recorded.get(key, ABSENT), ours.get(key, ABSENT))
            elif there == "result.events":
                yield from self.events(
                    "result.events.", _as_lines(recorded[key]), _as_lines(ours[key])
                )
            elif key not in _TIMES:
                yield from self._values(there, recorded[key], ours[key])

    def _values(self, where: str, recorded: Any, ours: Any) -> Iterator[Difference]:
        if isinstance(recorded, dict) and isinstance(ours, dict):
            yield from self.objects(where, recorded, ours)
        elif isinstance(recorded, list) and isinstance(ours, list):
            for key, one, other in _pairs(recorded, ours, lambda item: item["role"]):
                if ABSENT in (one, other):
                    yield self._differ(f"{where}[{key}]", one, other)
                else:
                    yield from self._values(where, one, other)
        elif is_id(recorded) and isinstance(ours, str):
            if not self._names.match(recorded, ours):
                yield self._differ(where, recorded, ours)
            elif _form_of(recorded) != _form_of(ours):
                yield self._differ(f"{where} (form)", _form_of(recorded), _form_of(ours))
        elif recorded != ours:
            yield self._differ(where, recorded, ours)

    def events(self, prefix: str, recorded: list[Line], ours: list[Line]) -> Iterator[Difference]:
        for key, one, other in _pairs(_joined(recorded), _joined(ours), _key_of):
            if ABSENT in (one, other):
                payloads = [each if each == ABSENT else each["payload"] for each in (one, other)]
                yield self._differ(prefix + key, *payloads)
            else:
                yield from self.objects(prefix + one["type"], one["payload"], other["payload"])


def _form_of(id: str) -> str:
    return re.sub(r"[0-9]+", "N", id)


def _pairs(
    recorded: list[Any], ours: list[Any], key_of: Callable[[Any], str]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the items of two lists, in order, as (key, one, other); ABSENT for what only one has."""
    keys, other_keys = [*map(key_of, recorded)], [*map(key_of, ours)]
    matcher = SequenceMatcher(None, keys, other_keys, autojunk=False)
    for tag, start, end, from_, to in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(keys[start:end], recorded[start:end], ours[from_:to], strict=True)
            continue
        yield from ((keys[at], recorded[at], ABSENT) for at in range(start, end))
        yield from ((other_keys[at], ABSENT, ours[at]) for at in range(from_, to))


def _key_of(event: Line) -> str:
    """Return what two events must have in common to be compared."""
    payload = event["payload"]
    told = {
        "message_start": "role",
        "message_update": "delta",
        "status": "message",
        "warning": "code",
    }.get(event["type"])
    return f"{event['type']} {payload[told]}" if told else str(event["type"])


def _as_lines(events: list[dict[str, Any]]) -> list[Line]:
    """Return the events of a ``result`` as the event socket has them."""
    return [
        {
            "type": event["type"],
            "payload": {k: v for k, v in event.items() if k not in ("type", "ts")},
        }
        for event in events
    ]


def _joined(events: list[Line]) -> list[Line]:
    """Join adjacent deltas of a message: their size is nothing to rely on."""
    joined: list[Line] = []
    for event in events:
        last = joined[-1] if joined else event
        if (
            event["type"] == last["type"] == "message_update"
            and event is not last
            and event["payload"]["message_id"] == last["payload"]["message_id"]
        ):
            delta = last["payload"]["delta"] + event["payload"]["delta"]
            joined[-1] = {**last, "payload": {**last["payload"], "delta": delta}}
        else:
            joined.append(event)
    return joined
