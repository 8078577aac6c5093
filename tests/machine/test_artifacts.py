"""The artifacts that each kind of event refers to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

import msgspec
import pytest
from msgspec import UNSET

from nousd.machine.projection.row_changes import UseArtifact
from nousd.machine.projection.row_projection import artifacts_of, names_artifact, row_changes
from nousd.wire import events
from nousd.wire.events import DELTA_EVENTS, EVENTS, Event
from nousd.wire.objects.entries import Attachment, CompactionEntry, MessageEntry
from nousd.wire.objects.inputs import PendingCounts, QueuedInput

TS = "2026-01-02T03:04:05.678Z"


def structs_in(type_: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        yield type_
    for part in get_args(type_):
        yield from structs_in(part)


def places(struct: type[msgspec.Struct]) -> list[tuple[str, ...]]:
    """Return the way to each field below a struct that names an artifact."""
    found: list[tuple[str, ...]] = []
    for field in msgspec.structs.fields(struct):
        if names_artifact(field.name):
            found.append((field.name,))
        for inner in structs_in(field.type):
            found += [(field.name, inner.__name__, *rest) for rest in places(inner)]
    return found


def made(type_: Any) -> Any:
    """Return some value of a type."""
    schema = msgspec.json.schema(type_)
    names = {"string": "x", "integer": 1, "boolean": True, "number": 1.0}
    for struct in structs_in(type_):
        return () if schema.get("type") == "array" else example(struct)
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "array":
        return ()
    return names.get(schema.get("type", ""), {})


def example(struct: type[msgspec.Struct], **fields: Any) -> Any:
    """Return a struct with those fields, and just as many others as it needs."""
    required = [field for field in msgspec.structs.fields(struct) if field.required]
    return struct(**{field.name: made(field.type) for field in required} | fields)


def with_reference(struct: type[msgspec.Struct], way: tuple[str, ...], artifact_id: str) -> Any:
    """Return a struct that names the artifact at the end of that way, and none elsewhere."""
    name, *rest = way
    (field,) = [field for field in msgspec.structs.fields(struct) if field.name == name]
    if not rest:
        several = name.endswith("_refs")
        return example(struct, **{name: (artifact_id,) if several else artifact_id})
    (inner,) = {found for found in structs_in(field.type) if found.__name__ == rest[0]}
    value = with_reference(inner, tuple(rest[1:]), artifact_id)
    alone = inner in structs_in_alone(field.type)
    return example(struct, **{name: value if alone else (value,)})


def structs_in_alone(type_: Any) -> set[Any]:
    """Return the structs that a field itself may hold, not those in an array of its."""
    return set() if get_origin(type_) is tuple else {type_, *get_args(type_)}


REFERRING = [(name, way) for name, struct in EVENTS.items() for way in places(struct)]


def test_the_events_that_refer_to_artifacts_are_found() -> None:
    assert {
        ("tool_execution_end", ("artifact_id",)),
        ("tool_call_completed", ("artifact_id",)),
        ("message_start", ("text_ref",)),
        ("message_start", ("attachments", "Attachment", "artifact_id")),
        ("message_end", ("text_ref",)),
        ("error", ("raw_ref",)),
        ("entry_appended", ("entry", "MessageEntry", "artifact_id")),
        ("entry_appended", ("entry", "MessageEntry", "text_ref")),
        ("entry_appended", ("entry", "MessageEntry", "attachments", "Attachment", "artifact_id")),
        ("queue_update", ("inputs", "QueuedInput", "text_ref")),
        ("queue_update", ("inputs", "QueuedInput", "attachments", "Attachment", "artifact_id")),
    } <= set(REFERRING)


@pytest.mark.parametrize(("name", "way"), REFERRING)
def test_whatever_an_event_refers_to_is_used_by_its_session(
    name: str, way: tuple[str, ...]
) -> None:
    event = with_reference(EVENTS[name], way, "sha256:1")
    assert artifacts_of(event) == ("sha256:1",)
    uses = [change for change in row_changes(event, 1, TS) if isinstance(change, UseArtifact)]
    assert uses == [UseArtifact(event.session_id, "sha256:1")]


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_without_a_reference_uses_nothing(name: str) -> None:
    required = {way[0] for way in places(EVENTS[name]) if len(way) == 1}
    event: Event = example(EVENTS[name])
    if not required & {f.name for f in msgspec.structs.fields(EVENTS[name]) if f.required}:
        assert artifacts_of(event) == ()


def test_deltas_which_change_no_row_refer_to_nothing() -> None:
    assert not [name for name, _ in REFERRING if name in DELTA_EVENTS]


def attached(*artifact_ids: str) -> tuple[Attachment, ...]:
    return tuple(
        Attachment(artifact_id=artifact_id, media_type="image/png", size_bytes=1)
        for artifact_id in artifact_ids
    )


def test_an_artifact_that_is_named_several_times_is_used_once() -> None:
    inputs = (
        example(QueuedInput, text_ref="sha256:1", attachments=attached("sha256:2", "sha256:1")),
        example(QueuedInput, attachments=attached("sha256:3", "sha256:2")),
    )
    event = events.QueueUpdate(
        session_id="s1",
        change="accepted",
        inputs=inputs,
        pending_counts=PendingCounts(steer=0, follow_up=0),
    )
    assert artifacts_of(event) == ("sha256:2", "sha256:1", "sha256:3")


def test_an_entry_that_may_be_of_two_kinds_is_looked_into() -> None:
    message = example(MessageEntry, artifact_id="sha256:1", text_ref=UNSET)
    for entry, ids in ((message, ("sha256:1",)), (example(CompactionEntry), ())):
        assert artifacts_of(events.EntryAppended(session_id="s1", entry=entry)) == ids
