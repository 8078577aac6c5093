"""Which artifacts an event refers to: the one rule by which artifacts are kept.

The rule goes by the names of fields, in an event and in whatever it holds: ``artifact_id``, and
every name that ends in ``_ref`` or ``_refs``. So a new event with such a field needs nothing more.
What an artifact holds is not known here; what it refers to in turn must be named by the event as
well.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
from msgspec import UNSET

from nousd.wire.events import Event


def artifacts_of(event: Event) -> tuple[str, ...]:
    """Return the ids of the artifacts that an event refers to, each once, in its fields' order."""
    found: dict[str, None] = {}
    _find_ids(event, found)
    return tuple(found)


def names_artifact(field: str) -> bool:
    """Whether a field of that name holds the id of an artifact, or several."""
    return field == "artifact_id" or field.endswith(("_ref", "_refs"))


def _find_ids(struct: msgspec.Struct, found: dict[str, None]) -> None:
    """Add the ids in a struct as keys. No generator: mostly there is none, and every event is asked."""
    for name in _fields_of_interest(type(struct)):
        value = getattr(struct, name)
        if value is UNSET or value is None:
            continue
        items = value if isinstance(value, tuple) else (value,)
        if names_artifact(name):
            found.update(dict.fromkeys(items))
        else:
            for item in items:
                _find_ids(item, found)


@functools.cache
def _fields_of_interest(struct: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields that hold ids, or structs with fields that do."""
    return tuple(
        field.name
        for field in msgspec.structs.fields(struct)
        if names_artifact(field.name) or any(map(_fields_of_interest, _structs_in(field.type)))
    )


def _structs_in(type_: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        yield type_
    for part in get_args(type_):
        yield from _structs_in(part)
