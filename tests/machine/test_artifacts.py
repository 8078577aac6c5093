"""The artifacts that each kind of event references."""

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


def reference_paths(struct: type[msgspec.Struct]) -> list[tuple[str, ...]]:
    """Return the field path of each artifact reference in a struct."""
    found: list[tuple[str, ...]] = []
    for field in msgspec.structs.fields(struct):
        if names_artifact(field.name):
            found.append((field.name,))
        for inner in structs_in(field.type):
            found += [(field.name, inner.__name__, *rest) for rest in reference_paths(inner)]
    return found


def example_value(type_: Any) -> Any:
    """Return an example value of a type."""
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
    """Return a struct with those fields and the other required ones."""
    required = [field for field in msgspec.structs.fields(struct) if field.required]
    return struct(**{field.name: example_value(field.type) for field in required} | fields)


def with_reference(
    struct: type[msgspec.Struct], field_path: tuple[str, ...], artifact_id: str
) -> Any:
    """Return a struct whose only artifact reference is at that field path."""
    name, *rest = field_path
    (field,) = [field for field in msgspec.structs.fields(struct) if field.name == name]
    if not rest:
        several = name.endswith("_refs")
        return example(struct, **{name: (artifact_id,) if several else artifact_id})
    (inner,) = {found for found in structs_in(field.type) if found.__name__ == rest[0]}
    value = with_reference(inner, tuple(rest[1:]), artifact_id)
    alone = inner in structs_in_alone(field.type)
    return example(struct, **{name: value if alone else (value,)})


def structs_in_alone(type_: Any) -> set[Any]:
    """Return the structs that a field itself may hold, without those in an array."""
    return set() if get_origin(type_) is tuple else {type_, *get_args(type_)}


REFERRING = [
    (name, field_path) for name, struct in EVENTS.items() for field_path in reference_paths(struct)
]


def test_the_search_finds_the_reference_fields_of_events() -> None:
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


@pytest.mark.parametrize(("name", "field_path"), REFERRING)
def test_each_artifact_reference_in_an_event_is_a_use_by_its_session(
    name: str, field_path: tuple[str, ...]
) -> None:
    event = with_reference(EVENTS[name], field_path, "sha256:1")
    assert artifacts_of(event) == ("sha256:1",)
    uses = [change for change in row_changes(event, 1, TS) if isinstance(change, UseArtifact)]
    assert uses == [UseArtifact(event.session_id, "sha256:1")]


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_without_a_reference_uses_no_artifact(name: str) -> None:
    required = {
        field_path[0] for field_path in reference_paths(EVENTS[name]) if len(field_path) == 1
    }
    event: Event = example(EVENTS[name])
    if not required & {f.name for f in msgspec.structs.fields(EVENTS[name]) if f.required}:
        assert artifacts_of(event) == ()


def test_delta_events_have_no_artifact_references() -> None:
    assert not [name for name, _ in REFERRING if name in DELTA_EVENTS]


def attached(*artifact_ids: str) -> tuple[Attachment, ...]:
    return tuple(
        Attachment(artifact_id=artifact_id, media_type="image/png", size_bytes=1)
        for artifact_id in artifact_ids
    )


def test_an_artifact_referenced_several_times_is_listed_once() -> None:
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


def test_references_are_found_in_entries_of_either_kind() -> None:
    message = example(MessageEntry, artifact_id="sha256:1", text_ref=UNSET)
    for entry, ids in ((message, ("sha256:1",)), (example(CompactionEntry), ())):
        assert artifacts_of(events.EntryAppended(session_id="s1", entry=entry)) == ids
