"""Check the queue rules of protocol/semantics/runs-and-queues.md against the log alone.

The checker reads every event in the order of the log, which is the order of the decisions. So it knows
at each moment which inputs are pending and which must be consumed next, however several clients, a model
and tools interleave. It shares no code with the daemon.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.harness.lifecycle import LifecycleChecker

Payload = dict[str, Any]

MODE_OF = {"steer": "steering_mode", "follow_up": "follow_up_mode"}


@dataclass
class QueueModel:
    """The state of one session according to its log. ``pending`` is in the order of acceptance."""

    pending: list[Payload] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    revision: int = 0
    """The ``queue_revision`` of the last change."""
    edited: list[str] = field(default_factory=list)
    """The new texts of edited inputs, in order."""
    consumed: list[str] = field(default_factory=list)
    cleared: list[str] = field(default_factory=list)
    appended: list[str] = field(default_factory=list)
    """Ids of the entries of consumed messages, in order."""
    placed: int = 0
    """Number of ``appended`` entries that are in the tree."""
    modes: dict[str, str] = field(
        default_factory=lambda: dict.fromkeys(MODE_OF.values(), "one-at-a-time")
    )
    run_id: str | None = None
    aborting: bool = False
    keeps_queue: bool = False
    leaf: Payload | None = None
    seq: int = 0
    lifecycle: LifecycleChecker = field(default_factory=LifecycleChecker)
    _own_prompt: str | None = None
    _last_user_message: Payload = field(default_factory=dict)
    _owed_results: set[str] = field(default_factory=set)
    _cut_off: set[str] = field(default_factory=set)
    """Calls without a result when a message was added after them: they never get one."""

    def feed(self, line: bytes) -> None:
        """Check the next line of the log and update the state.

        Raises:
            AssertionError: The line breaks a rule.
        """
        self.lifecycle.feed(line)
        event = json.loads(line)
        self.seq = int(event["id"].removeprefix("evt-"))
        rule = _RULES.get(event["type"])
        if rule is not None:
            rule(self, event["payload"])

    @property
    def in_order(self) -> list[str]:
        """Ids of the pending inputs in the order of their consumption."""
        kinds = ("steer", "prompt", "follow_up")
        return [item["input_id"] for kind in kinds for item in self.of_kind(kind)]

    @property
    def waiting(self) -> list[str]:
        """Ids of the future entries of pending messages, in order."""
        return [item["entry_id"] for item in self.of_kind("message")]

    def of_kind(self, kind: str) -> list[Payload]:
        return [item for item in self.pending if item["kind"] == kind]

    @property
    def unanswered(self) -> bool:
        """True if a run could continue from the leaf without any input."""
        if self.leaf is None or self.leaf["type"] == "compaction":
            return False
        return self.leaf["role"] != "assistant" or self.leaf["stop_reason"] not in (
            "stop",
            "length",
        )

    def next_turn(self) -> list[str]:
        """Return the ids of the inputs that the next turn must consume."""
        own = [item for item in self.pending if item["input_id"] == self._own_prompt]
        for kind in ("steer", "prompt", "follow_up"):
            waiting = own or self.of_kind(kind)
            if waiting:
                count = None if self.modes.get(MODE_OF.get(kind, "")) == "all" else 1
                return [item["input_id"] for item in waiting[:count]]
        return []

    def take(self, inputs: list[Payload]) -> list[str]:
        """Remove inputs, all of which must be pending, and return their ids."""
        ids = [item["input_id"] for item in inputs]
        known = [item["input_id"] for item in self.pending]
        assert set(ids) <= set(known), f"{ids} are not all pending: {known}"
        texts = {item["input_id"]: item["text"] for item in self.pending}
        for item in inputs:
            assert item["text"] == texts[item["input_id"]], "not as the last edit left it"
        assert len(set(ids)) == len(ids), f"twice in one event: {ids}"
        self.pending = [item for item in self.pending if item["input_id"] not in ids]
        return ids

    def place_of(self, item: Payload) -> int:
        """Return the index of an input in ``pending``."""
        known = [other["input_id"] for other in self.pending]
        assert item["input_id"] in known, f"{item} is not pending: {known}"
        return known.index(item["input_id"])

    def check_no_steer_is_pending(self, what: str) -> None:
        pending = [
            item
            for item in self.of_kind("steer")
            if self.run_id in (item.get("run_id"), item.get("promoted_run_id"))
        ]
        assert not pending, f"{what} although a steer of this run is pending: {pending}"


# --- the rules, one per event ------------------------------------------------------------------


def _agent_start(model: QueueModel, payload: Payload) -> None:
    assert model.run_id is None, "two runs at a time"
    model.run_id = payload["run_id"]
    own = [item for item in model.of_kind("prompt") if item["run_id"] == model.run_id]
    model._own_prompt = own[0]["input_id"] if own else None


def _agent_end(model: QueueModel, payload: Payload) -> None:
    assert model.run_id == payload["run_id"]
    assert not model.waiting, f"a run ended without a place for {model.waiting}"
    if payload["status"] == "completed":
        assert not model.pending, f"a completed run left {model.in_order}"
        assert not model._owed_results, f"calls without results: {model._owed_results}"
    if model.aborting:
        assert payload["status"] in ("cancelled", "interrupted")
        assert model.keeps_queue or not model.pending, f"an aborted run left {model.in_order}"
        own = [item for item in model.of_kind("prompt") if item["run_id"] == model.run_id]
        assert not own, "an aborted run left its own prompt"
    model.run_id, model.aborting = None, False
    model._owed_results.clear()


def _run_aborting(model: QueueModel, payload: Payload) -> None:
    assert model.run_id == payload["run_id"]
    assert not model.aborting, "aborted twice"
    model.aborting, model.keeps_queue = True, payload.get("keep_queue", False)


def _turn_start(model: QueueModel, _: Payload) -> None:
    assert not model.waiting, f"a turn begins before {model.waiting} have their place"
    assert not model.aborting, "a turn begins in a run that is being aborted"


def _message_start(model: QueueModel, payload: Payload) -> None:
    if payload["role"] == "user":
        model._last_user_message = payload


def _queue_update(model: QueueModel, payload: Payload) -> None:
    is_seen = payload["inputs"][0]["kind"] != "message"
    assert payload["queue_revision"] == model.revision + is_seen, "each change counts once"
    model.revision = payload["queue_revision"]
    _CHANGES[payload["change"]](model, payload)
    counts = {kind: len(model.of_kind(kind)) for kind in ("steer", "follow_up")}
    assert payload["pending_counts"] == counts, f"counted {counts}: {payload}"


def _accepted(model: QueueModel, payload: Payload) -> None:
    (item,) = payload["inputs"]
    assert item["input_id"] not in model.accepted, "accepted twice"
    if item["kind"] == "message":
        model.pending.append(item)
        return
    assert not model.aborting, "accepted by a run that is being aborted"
    if item["kind"] == "prompt":
        assert model.run_id is None, "a prompt during a run"
    else:
        assert item["run_id"] == model.run_id, "accepted by a run that is not there"
    model.accepted.append(item["input_id"])
    model.pending.append(item)


def _promoted(model: QueueModel, payload: Payload) -> None:
    (item,) = payload["inputs"]
    before = [other["kind"] for other in model.pending if other["input_id"] == item["input_id"]]
    assert (before, item["kind"]) == (["follow_up"], "steer")
    assert item.get("promoted_run_id") == model.run_id, "promoted for another run"
    model.take([item])
    model.pending.append(item)


def _edited(model: QueueModel, payload: Payload) -> None:
    (item,) = payload["inputs"]
    at = model.place_of(item)
    same = ("input_id", "kind", "run_id", "accepted_at", "client_id")
    before = model.pending[at]
    assert [item.get(key) for key in same] == [before.get(key) for key in same]
    model.pending[at] = item
    model.edited.append(item["text"])


def _moved(model: QueueModel, payload: Payload) -> None:
    (item,) = payload["inputs"]
    assert model.pending.pop(model.place_of(item)) == item, "a move changes nothing else"
    before = payload.get("before_input_id")
    if before is None:
        model.pending.append(item)
        return
    at = model.place_of({"input_id": before})
    assert model.pending[at]["kind"] == item["kind"], "moved among inputs of another kind"
    model.pending.insert(at, item)


def _consumed(model: QueueModel, payload: Payload) -> None:
    inputs = payload["inputs"]
    ids = [item["input_id"] for item in inputs]
    if inputs[0]["kind"] == "message":
        assert [item["entry_id"] for item in inputs] == model.waiting
        model.appended += [item["entry_id"] for item in model.pending if item in inputs]
        model.take(inputs)
        return
    assert not model.aborting, "consumed by a run that is being aborted"
    assert ids == model.next_turn(), f"consumed {ids}, but it is the turn of {model.next_turn()}"
    assert model._last_user_message["input_ids"] == ids
    assert model._last_user_message["turn_kind"] == inputs[0]["kind"]
    assert model._last_user_message["text"] == "\n".join(item["text"] for item in inputs)
    model.consumed += model.take(inputs)


def _cleared(model: QueueModel, payload: Payload) -> None:
    ids = [item["input_id"] for item in payload["inputs"]]
    assert ids == [name for name in model.in_order if name in ids], "not in the order of turns"
    assert "message" not in [item["kind"] for item in payload["inputs"]], "a message is not cleared"
    if model.aborting and model.keeps_queue:
        own = [item for item in model.of_kind("prompt") if item["run_id"] == model.run_id]
        assert payload["inputs"] == own, "such an abort takes the run's own prompt back"
    elif model.aborting:
        assert ids == model.in_order, "an abort empties everything"
    model.cleared += model.take(payload["inputs"])


def _session_updated(model: QueueModel, payload: Payload) -> None:
    model.modes.update({key: payload[key] for key in MODE_OF.values() if key in payload})


def _entry_appended(model: QueueModel, payload: Payload) -> None:
    entry = payload["entry"]
    before = None if model.leaf is None else model.leaf["id"]
    assert entry.get("parent_id") == before, "an entry hangs on the leaf"
    if entry.get("role") == "user" and not entry["run_id"]:
        assert entry["id"] == model.appended[model.placed], "messages keep their order"
        model.placed += 1
        model._cut_off |= model._owed_results
    model.leaf = entry
    model._owed_results |= {call["tool_call_id"] for call in entry.get("tool_calls", ())}
    model._owed_results.discard(entry.get("tool_call_id"))
    between = entry.get("tool_call_id") in model._cut_off
    assert not between, "a message between a call and its result"


def _tool_call_started(model: QueueModel, _: Payload) -> None:
    model.check_no_steer_is_pending("a tool call begins")


def _status(model: QueueModel, payload: Payload) -> None:
    if payload["message"].startswith("await_next"):
        model.check_no_steer_is_pending("the model is asked again")


_CHANGES: dict[str, Callable[[QueueModel, Payload], None]] = {
    "accepted": _accepted,
    "promoted": _promoted,
    "edited": _edited,
    "moved": _moved,
    "consumed": _consumed,
    "cleared": _cleared,
}

_RULES: dict[str, Callable[[QueueModel, Payload], None]] = {
    "agent_start": _agent_start,
    "agent_end": _agent_end,
    "run_aborting": _run_aborting,
    "turn_start": _turn_start,
    "message_start": _message_start,
    "queue_update": _queue_update,
    "session_updated": _session_updated,
    "entry_appended": _entry_appended,
    "tool_call_started": _tool_call_started,
    "status": _status,
}
