"""Checks that the runs in a stream of events are balanced, whatever happened in them.

Feed one ``LifecycleChecker`` every event line of a stream from its start; runs may be interleaved. It
is written from protocol/v1.md ("Lifecycle") alone and imports nothing of the daemon, so that it
cannot share a mistake with it.

A stream may lack types that its reader did not request, and a log may be of an earlier version: so
events beside the frozen types are required only in the runs that ``complete_after`` selects. Events that
are there must be in order in any case.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Payload = dict[str, Any]


@dataclass
class _Message:
    id: str
    role: str
    text: str
    deltas: list[tuple[int, str]] = field(default_factory=list)
    """(number of the first event that a delta replaces, text) of each delta."""


@dataclass
class _Call:
    """An open tool call; ``decision`` is "approved" or "denied"."""

    id: str
    name: str
    attempt: int | None = None
    denied_by_source: bool = False
    decision: str | None = None
    started: bool = False
    carried: Payload = field(default_factory=dict)
    """Executor and permission mode of its start; empty in logs of earlier revisions."""
    completed: bool = False
    late: bool = False
    """Whether its ``tool_execution_start`` came after its request."""
    early: bool = False
    """Whether it was completed before its ``tool_execution_start``."""
    asked: dict[str, bool] = field(default_factory=dict)
    """question_id of its own questions -> True if resolved."""


@dataclass
class _Run:
    """The open parts of a run: at most one turn; in it at most one message or one tool call.

    ``seq`` is the number of the run's event that was fed last. ``asks_models``: the daemon calls its
    models, not an agent program.
    """

    session_id: str
    asks_models: bool = True
    complete: bool = False
    seq: int = 0
    turns_started: int = 0
    turn_id: str | None = None
    message: _Message | None = None
    call: _Call | None = None
    waiting: dict[str, _Call] = field(default_factory=dict)
    """The calls whose steps have begun and whose bracket follows."""
    of_tasks: set[str] = field(default_factory=set)
    """The open requests of tasks."""
    model_asked: bool = False
    ended: bool = False
    message_ids: set[str] = field(default_factory=set)
    tool_call_ids: set[str] = field(default_factory=set)


class LifecycleChecker:
    """Raises AssertionError at the first event that breaks a rule, naming the event and the rule.

    Args:
        complete_after: runs that start after this event number have every specified event.
            None: no run needs to.
    """

    def __init__(self, *, complete_after: int | None = None) -> None:
        self._complete_after = complete_after
        self._runs: dict[str, _Run] = {}
        self._client_calls: dict[str, tuple[str, str]] = {}
        """call id -> (session, state) of each open client call."""
        self._client_call_ids: set[str] = set()
        self._carried: dict[str, Payload] = {}
        """call id -> executor and permission mode of each running client call."""
        self._last_seq = -1

    def feed(self, line: bytes) -> None:
        """Take the next event line of the stream."""
        event = json.loads(line)
        try:
            self._feed(event)
        except AssertionError as error:
            raise AssertionError(f"{error}, at {line.decode().rstrip()}") from None

    def finish(self) -> None:
        """Assert that every started run and every client call has ended."""
        open_runs = sorted(run_id for run_id, run in self._runs.items() if not run.ended)
        assert not open_runs, f"agent_start without agent_end: {', '.join(open_runs)}"
        assert not self._client_calls, f"calls without an end: {', '.join(self._client_calls)}"

    def _feed_client_call(self, type_: str, payload: Payload) -> None:
        """Take an event of a client call, which belongs to no run."""
        call_id = payload["tool_call_id"]
        after = _CLIENT_CALL[type_]
        if type_ == "tool_call_requested":
            assert call_id not in self._client_call_ids, "a tool_call_id was used twice"
            self._client_call_ids.add(call_id)
        else:
            assert call_id in self._client_calls, f"{type_} of a call that is not open"
            _, before = self._client_calls[call_id]
            allowed = _CLIENT_CALL_MAY[before]
            assert type_ in allowed, f"{type_} of a client's call that is {before}"
            if type_ == "tool_call_completed" and before == "approved":
                assert "stop_reason" in payload, "a call is completed that was not started"
            after = after or before
        assert payload["attempt"] == 1, "a client's call is requested once"
        if type_ == "tool_call_started":
            self._carried[call_id] = _carried(payload)
        if type_ == "tool_call_completed":
            _tells_who(payload, self._carried.pop(call_id, {}))
        self._client_calls[call_id] = (payload["session_id"], after)
        if after == "ended":
            del self._client_calls[call_id]

    @property
    def ended_runs(self) -> int:
        """The number of runs that have ended so far."""
        return sum(run.ended for run in self._runs.values())

    def _feed(self, event: dict[str, Any]) -> None:
        seq = int(event["id"].removeprefix("evt-"))
        assert seq > self._last_seq, f"event ids must grow: {seq} after {self._last_seq}"
        self._last_seq = seq
        payload, type_ = event["payload"], event["type"]
        run_id = payload.get("run_id")
        if type_ == "session_deleted":
            for call_id, (of, _) in list(self._client_calls.items()):
                if of == payload["session_id"]:
                    del self._client_calls[call_id]
        if run_id is None and type_ in _CLIENT_CALL:
            self._feed_client_call(type_, payload)
            return
        if run_id is None:
            # A manual compaction belongs to no run.
            by_hand = type_ == "model_input" and payload.get("purpose") == "summary"
            assert by_hand or type_ not in _RULES, f"{type_} has no run_id"
            return
        if type_ == "agent_start":
            assert run_id not in self._runs, f"second agent_start of {run_id}"
            complete = self._complete_after is not None and seq > self._complete_after
            asks_models = payload.get("runtime", "native") == "native"
            self._runs[run_id] = _Run(payload["session_id"], asks_models, complete)
            return
        run = self._runs.get(run_id)
        if run is None or run.ended:
            assert type_ not in _RULES, f"{type_} outside of its run"
            return
        assert payload["session_id"] == run.session_id, "a run changed its session"
        run.seq = seq
        rule = _RULES.get(type_)
        if "origin" in payload:
            _of_task(run, type_, payload)
        elif rule is not None:
            rule(run, payload)


def _in_turn(run: _Run, payload: Payload) -> None:
    assert run.turn_id is not None, "outside of a turn"
    assert payload["turn_id"] == run.turn_id, f"turn {run.turn_id} is the open one"


def _agent_end(run: _Run, _payload: Payload) -> None:
    assert run.turn_id is None, f"agent_end while turn {run.turn_id} is open"
    run.ended = True


def _turn_start(run: _Run, payload: Payload) -> None:
    assert run.turn_id is None, f"turn_start while turn {run.turn_id} is open"
    run.turns_started += 1
    assert payload["turn_id"] == str(run.turns_started), f"expected turn_id {run.turns_started}"
    run.turn_id = payload["turn_id"]


def _turn_end(run: _Run, payload: Payload) -> None:
    _in_turn(run, payload)
    assert run.message is None, "turn_end while a message is open"
    assert run.call is None, "turn_end while a tool runs"
    assert not run.waiting, f"turn_end while calls wait for their bracket: {list(run.waiting)}"
    run.model_asked = False
    run.turn_id = None


def _message_start(run: _Run, payload: Payload) -> None:
    _in_turn(run, payload)
    assert run.message is None, "message_start while a message is open"
    assert run.call is None, "message_start while a tool runs"
    assert payload["message_id"] not in run.message_ids, "a message_id was used twice"
    run.message_ids.add(payload["message_id"])
    role = payload["role"]
    assert role != "user" or "text" in payload, "a user's message_start has no text"
    if role == "assistant" and run.asks_models:
        assert run.model_asked or not run.complete, "an answer without a model_input"
        run.model_asked = False
    run.message = _Message(payload["message_id"], role, payload.get("text", ""))


def _message_update(run: _Run, payload: Payload) -> None:
    message = _open_message(run, payload)
    assert message.role == "assistant", "message_update of a user message"
    first = run.seq
    if "joined_from" in payload:
        first = int(payload["joined_from"].removeprefix("evt-"))
        assert first < run.seq, "joined_from is no earlier event"
    earlier = [(at, delta) for at, delta in message.deltas if at < first]
    message.deltas = [*earlier, (first, payload["delta"])]


def _message_end(run: _Run, payload: Payload) -> None:
    message = _open_message(run, payload)
    told = message.text if message.role == "user" else "".join(delta for _, delta in message.deltas)
    assert payload["text"] == told, f"message_end.text is not what was told: {told!r}"
    run.message = None


def _open_message(run: _Run, payload: Payload) -> _Message:
    _in_turn(run, payload)
    assert run.message is not None, "no message is open"
    assert payload["message_id"] == run.message.id, f"message {run.message.id} is the open one"
    return run.message


def _model_input(run: _Run, payload: Payload) -> None:
    _in_turn(run, payload)
    assert run.message is None, "a model is asked while a message is open"
    assert run.call is None, "a model is asked while a tool runs"
    assert len(payload.get("omitted", [])) <= payload["omitted_count"], "more omitted than counted"
    if payload.get("purpose", "answer") == "answer":
        run.model_asked = True


def _tool_start(run: _Run, payload: Payload) -> None:
    _in_turn(run, payload)
    assert run.message is None, "a tool starts while a message is open"
    assert run.call is None, f"tool call {run.call.id} is still running"
    assert payload["tool_call_id"] not in run.tool_call_ids, "a tool_call_id was used twice"
    run.tool_call_ids.add(payload["tool_call_id"])
    late = run.waiting.pop(payload["tool_call_id"], None)
    run.call = late or _Call(payload["tool_call_id"], payload["tool_name"])


def _open_call(run: _Run, payload: Payload) -> _Call:
    """Return the call of a step: the one whose bracket is open, or one that waits for its bracket."""
    if payload["tool_call_id"] in run.waiting:
        _in_turn(run, payload)
        return run.waiting[payload["tool_call_id"]]
    return _call_in_bracket(run, payload)


def _call_in_bracket(run: _Run, payload: Payload) -> _Call:
    _in_turn(run, payload)
    assert run.call is not None, "no tool call is running"
    assert payload["tool_call_id"] == run.call.id, f"{run.call.id} is the running call"
    assert payload["tool_name"] == run.call.name, f"the running call is of {run.call.name}"
    return run.call


_ASKS = {"permission_requested": "tool_call_id", "question_asked": "question_id"}
_ENDS = {
    "tool_call_approved": "tool_call_id",
    "tool_call_denied": "tool_call_id",
    "question_answered": "question_id",
    "question_rejected": "question_id",
}


def _of_task(run: _Run, type_: str, payload: Payload) -> None:
    """Check that each request of a task in a running call is asked and resolved once."""
    if type_ in _ASKS:
        assert _running(run), "a task asks while no call runs"
        asked = payload[_ASKS[type_]]
        assert asked not in run.of_tasks, "a task asks twice under one id"
        run.of_tasks.add(asked)
    else:
        assert payload[_ENDS[type_]] in run.of_tasks, "an answer that no task waits for"
        run.of_tasks.discard(payload[_ENDS[type_]])


def _running(run: _Run) -> bool:
    calls = [*run.waiting.values(), *([run.call] if run.call else [])]
    return any(call.started and not call.completed for call in calls)


def _asks(run: _Run, payload: Payload) -> None:
    call = _open_call(run, payload)
    assert call.started, "a call asks before it was started"
    assert not call.completed, "a call asks after it is over"
    assert payload["question_id"] not in call.asked, "a question_id was used twice"
    call.asked[payload["question_id"]] = False


def _is_answered(run: _Run, payload: Payload) -> None:
    call = _open_call(run, payload)
    assert call.asked.get(payload["question_id"]) is False, "the end of a question that is not open"
    call.asked[payload["question_id"]] = True


def _requested(run: _Run, payload: Payload) -> None:
    call_id = payload["tool_call_id"]
    is_open = run.call is not None and run.call.id == call_id
    if not is_open and (run.message or run.call):
        assert call_id not in run.tool_call_ids | set(run.waiting), "a tool_call_id was used twice"
        run.waiting[call_id] = _Call(call_id, payload["tool_name"], late=True)
    call = _open_call(run, payload)
    assert call.attempt is None, "a call is requested twice"
    assert not call.started, "a call is requested after it was started"
    assert payload["attempt"] >= 1, "attempts count from 1"
    call.attempt = payload["attempt"]


def _undecided(run: _Run, payload: Payload) -> _Call:
    call = _open_call(run, payload)
    assert call.attempt is not None, "the call was not requested"
    assert payload["attempt"] == call.attempt, f"attempt {call.attempt} is the one requested"
    assert call.decision is None, "the call is decided already"
    return call


def _evaluated(run: _Run, payload: Payload) -> None:
    call = _undecided(run, payload)
    # Extensions run before the rules, since they may change the arguments, and are logged after them.
    is_extension = payload["source"] == "extension"
    assert is_extension or not call.denied_by_source, "a further source is asked after one denied"
    call.denied_by_source = call.denied_by_source or payload["decision"] == "deny"


def _approved(run: _Run, payload: Payload) -> None:
    call = _undecided(run, payload)
    assert not call.denied_by_source, "a call is approved that a source denies"
    call.decision = "approved"


def _denied(run: _Run, payload: Payload) -> None:
    _undecided(run, payload).decision = "denied"


def _started(run: _Run, payload: Payload) -> None:
    call = _open_call(run, payload)
    assert not call.started, "a call is started twice"
    if call.attempt is not None:
        assert payload["attempt"] == call.attempt, f"attempt {call.attempt} is the one requested"
        assert call.decision == "approved", "a call is started that was not approved"
    call.started = True
    call.carried = _carried(payload)


def _carried(started: Payload) -> Payload:
    return {key: started[key] for key in ("executed_by", "permission_mode") if key in started}


def _tells_who(completed: Payload, carried: Payload) -> None:
    """Assert that the end of a call repeats the executor and permission mode of its start."""
    told = completed | completed.get("policy_snapshot", {})
    for key, value in carried.items():
        assert told.get(key) == value, f"the end of a call tells another {key} than its start"


def _completed(run: _Run, payload: Payload) -> None:
    call = _open_call(run, payload)
    assert call.started, "a call is completed that was not started"
    assert not call.completed, "a call is completed twice"
    assert all(call.asked.values()), "a call is completed while a question of it is open"
    assert ("duration_ms" in payload) != ("stop_reason" in payload), (
        "a call came to its end or was cut off"
    )
    _tells_who(payload, call.carried)
    call.early = call is not run.call
    assert call.late == ("result" in payload), "a call has its result here if it had to wait"
    call.completed = True


def _output(run: _Run, payload: Payload) -> None:
    assert payload["tool_call_id"] in run.waiting, "tool_call_output of a call with a bracket"
    call = _open_call(run, payload)
    assert call.started, "output of a call that does not run"
    assert not call.completed, "output of a call that is completed"


def _tool_update(run: _Run, payload: Payload) -> None:
    call = _call_in_bracket(run, payload)
    assert not call.completed or call.early, "output of a call that is completed"
    if call.attempt is not None:
        assert call.started or call.decision == "denied", "output of a call that does not run"


def _tool_end(run: _Run, payload: Payload) -> None:
    call = _call_in_bracket(run, payload)
    assert not run.of_tasks or _running(run), f"what tasks asked has no end: {run.of_tasks}"
    if call.attempt is not None:
        assert call.decision is not None, "the call was never decided"
        assert call.started == payload["executed"], "executed is not whether it was started"
        assert call.started == call.completed, "a call that was started is not completed"
    else:
        assert not run.complete, "the call was never requested"
    run.call = None


def _aside(run: _Run, payload: Payload) -> None:
    """Check a status, warning or error: outside of turns, or in the turn that it names."""
    if "turn_id" in payload:
        _in_turn(run, payload)


_RULES: dict[str, Callable[[_Run, Payload], object]] = {
    "agent_end": _agent_end,
    "turn_start": _turn_start,
    "turn_end": _turn_end,
    "message_start": _message_start,
    "message_update": _message_update,
    "message_end": _message_end,
    "reasoning_update": _in_turn,
    "model_input": _model_input,
    "tool_execution_start": _tool_start,
    "tool_call_requested": _requested,
    "tool_call_policy_evaluated": _evaluated,
    "permission_requested": _undecided,
    "tool_call_approved": _approved,
    "tool_call_denied": _denied,
    "tool_call_started": _started,
    "question_asked": _asks,
    "question_answered": _is_answered,
    "question_rejected": _is_answered,
    "tool_call_completed": _completed,
    "tool_call_output": _output,
    "tool_execution_update": _tool_update,
    "tool_execution_end": _tool_end,
    "status": _aside,
    "warning": _aside,
    "error": _aside,
}
"""event type -> the check of the run's state; ``agent_start`` creates the state.

Events without a rule (a usage report, a queue change) may occur anywhere.
"""

_CLIENT_CALL: dict[str, str] = {
    "tool_call_requested": "requested",
    "tool_call_policy_evaluated": "",
    "permission_requested": "",
    "tool_call_approved": "approved",
    "tool_call_denied": "ended",
    "tool_call_started": "started",
    "tool_call_output": "",
    "question_asked": "",
    "question_answered": "",
    "question_rejected": "",
    "tool_call_completed": "ended",
}
"""event type of a client call -> the call's next state; "" leaves it."""

_QUESTIONS = {"question_asked", "question_answered", "question_rejected"}

_CLIENT_CALL_MAY: dict[str, set[str]] = {
    "requested": {
        *("tool_call_policy_evaluated", "permission_requested"),
        *("tool_call_approved", "tool_call_denied"),
    },
    "approved": {"tool_call_started", "tool_call_completed"},
    "started": {"tool_call_output", "tool_call_completed"} | _QUESTIONS,
}
"""state of a client call -> event types that may follow."""
