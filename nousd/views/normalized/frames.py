"""The envelope of the view, and the numbers of its frames.

The number of a frame is derived from its event, as in all views (``views.stream_position``): it
increases within a session, has gaps, and is the same for every reader.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from nousd.views.normalized.fold import fold
from nousd.views.normalized.payloads import SCHEMA_VERSION, TYPES
from nousd.views.normalized.thread import Thread
from nousd.views.stream_position import FRAMES_MAX, frame_id
from nousd.wire.codec.envelope import decode_event, event_in
from nousd.wire.commands.subscribe import cursor_seq
from nousd.wire.events import Event

NO_RUNTIME: Final = "nousd"
"""The name of the runtime if none is involved, such as in a client's own tool call."""


class Trace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The origin of an event. ``task_id`` is the run, ``request_id`` the ``correlation_id`` of its
    prompt, ``client_id`` the name of the client that requested the run or made the decision.
    """

    session_id: str
    task_id: str | UnsetType = UNSET
    request_id: str | UnsetType = UNSET
    client_id: str | UnsetType = UNSET


class RuntimeName(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The runtime of a run."""

    name: str
    model: str | UnsetType = UNSET
    runtime_session_id: str | UnsetType = UNSET


class NormalizedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One frame."""

    schema_version: int = SCHEMA_VERSION
    seq: int
    time: str
    type: str
    trace: Trace
    runtime: RuntimeName
    payload: Any


def events_of(line: bytes, thread: Thread) -> list[NormalizedEvent]:
    """Return the frames of an event, at most ``FRAMES_MAX``, and update its thread."""
    logged = decode_event(line)
    event = event_in(logged)
    emitted = fold(thread, event)
    assert len(emitted) <= FRAMES_MAX
    seq, trace, runtime = cursor_seq(logged.id), _trace(thread, event), _runtime(thread, event)
    return [
        NormalizedEvent(
            seq=frame_id(seq, index),
            time=logged.ts,
            type=TYPES[type(payload)],
            trace=trace,
            runtime=runtime,
            payload=payload,
        )
        for index, payload in enumerate(emitted)
    ]


def _trace(thread: Thread, event: Event) -> Trace:
    start = thread.start
    asked_by = UNSET if start is None else start.client_id
    return Trace(
        session_id=event.session_id,
        task_id=getattr(event, "run_id", UNSET),
        request_id=UNSET if start is None else start.correlation_id,
        client_id=getattr(event, "client_id", UNSET) or asked_by,
    )


def _runtime(thread: Thread, event: Event) -> RuntimeName:
    name = getattr(event, "runtime", UNSET) or thread.runtime or NO_RUNTIME
    return RuntimeName(
        name=name,
        model=getattr(event, "model", UNSET) or thread.model,
        runtime_session_id=thread.runtime_session_id,
    )
