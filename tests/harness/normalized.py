"""A judge of the normalized view: the order of its frames, and their schema.

It knows the reference's rules and nothing of the view's code: what a task begins and ends with, and how
the steps of one attempt at a call follow each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from nousd.store.interface import Store
from nousd.store.records import EventFilter
from nousd.views.normalized.fold import VIEW_TYPES
from nousd.views.normalized.frames import events_of
from nousd.views.normalized.thread import Thread
from nousd.wire.codec.envelope import decode_event, event_in
from nousd.wire.events import thread_of
from tests.harness.validation import check_normalized

Frame = dict[str, Any]

TERMINAL: Final = {"task.completed", "task.failed", "task.stopped"}

NEXT: Final[dict[str, set[str]]] = {
    "": {"tool.call.requested"},
    "tool.call.requested": {
        "tool.call.policy_evaluated",
        "tool.call.approved",
        "tool.call.denied",
    },
    "tool.call.policy_evaluated": {
        "tool.call.policy_evaluated",
        "tool.call.approved",
        "tool.call.denied",
    },
    "tool.call.approved": {"tool.call.started"},
    "tool.call.started": {"tool.output.delta", "tool.output.completed", "tool.call.completed"},
    "tool.output.delta": {"tool.output.delta", "tool.output.completed", "tool.call.completed"},
    "tool.output.completed": {"tool.call.completed"},
    "tool.call.completed": set(),
    "tool.call.denied": set(),
}
"""step of an attempt -> what may follow."""

CALL_ENDS: Final = {"tool.call.completed", "tool.call.denied"}


class NormalizedJudge:
    """Takes the frames of a log from its beginning, one after the other."""

    def __init__(self) -> None:
        self._seq: dict[str, int] = {}
        self._tasks: dict[str, str] = {}
        self._calls: dict[tuple[str | None, str, int], str] = {}
        self._said: dict[tuple[str, int, str], str] = {}

    def take(self, frame: Frame) -> None:
        check_normalized(msgspec.json.encode(frame) + b"\n")
        session, task = frame["trace"]["session_id"], frame["trace"].get("task_id")
        assert frame["seq"] > self._seq.get(session, 0), frame
        self._seq[session] = frame["seq"]
        if task is not None:
            self._of_task(task, frame["type"])
        if "tool_call_id" in frame["payload"]:
            self._of_call(task, frame["type"], frame["payload"])

    def _of_task(self, task: str, type: str) -> None:
        before = self._tasks.get(task)
        assert (before is None) == (type == "task.started"), (task, before, type)
        assert before not in TERMINAL, (task, before, type)
        self._tasks[task] = type
        if type in TERMINAL:
            open_ = [key for key, step in self._calls.items() if step not in CALL_ENDS]
            assert not [key for key in open_ if key[0] == task], open_

    def _of_call(self, task: str | None, type: str, payload: Frame) -> None:
        attempt = (payload["tool_call_id"], payload["attempt"])
        before = self._calls.get((task, *attempt), "")
        assert type in NEXT[before], (before, type, payload)
        self._calls[task, *attempt] = type
        if type == "tool.output.delta":
            key = (*attempt, payload["stream"])
            self._said[key] = self._said.get(key, "") + payload["delta"]
        elif type == "tool.output.completed":
            for stream in ("stdout", "stderr"):
                said = self._said.get((*attempt, stream), "")
                told = payload.get(stream, "")
                assert said == told or (payload["is_truncated"] and said.startswith(told))

    def finish(self) -> None:
        """Assert that every task and call has ended."""
        assert set(self._tasks.values()) <= TERMINAL, self._tasks
        assert set(self._calls.values()) <= CALL_ENDS, self._calls


def frames_of(line: bytes, threads: dict[str, Thread]) -> list[Frame]:
    """Return the frames of the next event line of a log.

    Args:
        threads: what is known so far; empty at the beginning.
    """
    logged = decode_event(line)
    if logged.type not in VIEW_TYPES:
        return []
    id = thread_of(event_in(logged))
    thread = Thread() if id is None else threads.setdefault(id, Thread())
    frames: list[Frame] = msgspec.json.decode(msgspec.json.encode(events_of(line, thread)))
    return frames


def frames_in(lines: Iterable[bytes]) -> list[Frame]:
    """Return the frames of a log from its beginning."""
    threads: dict[str, Thread] = {}
    return [frame for line in lines for frame in frames_of(line, threads)]


async def lines_of(store: Store) -> list[bytes]:
    """Return every line of a log."""
    lines: list[bytes] = []
    after = 0
    while page := await store.events_after(after, EventFilter(), limit=10_000, bytes_max=2**24):
        lines += [stored.line for stored in page]
        after = page[-1].seq
    return lines
