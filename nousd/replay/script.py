"""Derives the recorded behaviour of a run's model and tools from its events.

An answer follows from its deltas and its entry, a tool call from the events between its start and its
end. Facts that are not logged (such as when a reasoning block arrived) are chosen so that the same
events result.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from nousd.errors import ToolArgumentsInvalid, without_category
from nousd.machine.context import text_offload
from nousd.providers.interface import (
    Finished,
    FinishReason,
    Piece,
    ReasoningDelta,
    ReasoningKept,
    Retrying,
    TextDelta,
    ToolCallPiece,
    UsageSoFar,
)
from nousd.replay.recorded import RecordedRun, is_outside
from nousd.runtimes.calls.admission import RAW_ARGUMENTS
from nousd.wire import events
from nousd.wire.codec.envelope import encode_json
from nousd.wire.events import Event
from nousd.wire.objects.entries import CompactionEntry, MessageEntry, ReasoningBlock, Usage
from nousd.wire.objects.policy import ExecutedBy, ExecutionEnv, SandboxFacts

_RETRY: Final = re.compile(r"(\S+) retry attempt (\d+)/(\d+) after (.*)", re.DOTALL)
_STOP_REASON: Final = "provider_stop_reason: "
_ERROR: Final = "tool_error: "

_INVALID: Final = ToolArgumentsInvalid.code


class Failed(msgspec.Struct, frozen=True):
    """A failed model call, with the server's words.

    Args:
        overflowed: whether its input was too long.
        too_long: the run's error if the answer was too long, else "".
        category: the category of the failure; None if it is not logged.
    """

    cause: str
    overflowed: bool = False
    raw: bytes = b""
    too_long: str = ""
    category: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """One model call, cut off if ``failed`` is None and the pieces do not end with ``Finished``."""

    pieces: tuple[Piece, ...] = ()
    failed: Failed | None = None

    @property
    def is_cut_off(self) -> bool:
        """Whether the run was stopped before the call ended."""
        return self.failed is None and not (self.pieces and isinstance(self.pieces[-1], Finished))


class Summary(msgspec.Struct, frozen=True):
    """The model call for a compaction's summary. It has no pieces if it had no result, and ``failed`` if
    it ended the run.
    """

    pieces: tuple[Piece, ...]
    is_cut_off: bool = False
    failed: Failed | None = None


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call that reached its tool.

    Args:
        invalid: the reason why its arguments were invalid.
        steps: its output and the other events of its tool, in order.
        result: the tool's result; None for a call that was cut off.
        failed_as: the code of the warning about a failed call.
        full: the whole output, if the result is a part of it.
        executed_by: the executor of the call; None if it is not logged.
        execution_env, sandbox: the environment and the sandbox of the call.
    """

    invalid: str | None = None
    steps: tuple[Event, ...] = ()
    result: str | None = None
    failed_as: str | None = None
    full: bytes | None = None
    executed_by: ExecutedBy | None = None
    execution_env: ExecutionEnv = "host"
    sandbox: SandboxFacts | None = None


class Script(msgspec.Struct, frozen=True):
    """The behaviour to replay, each kind in order; calls are by the tool's name."""

    answers: tuple[Answer, ...]
    summaries: tuple[Summary, ...]
    calls: Mapping[str, tuple[Call, ...]]


def script_of(run: RecordedRun) -> Script:
    """Return the recorded behaviour of a run's model and tools."""
    reader = _Reader(run)
    for event in run.events:
        read = _READ.get(type(event))
        if read is not None:
            read(reader, event)
    return Script(
        tuple(reader.answers),
        tuple(reader.summaries),
        {name: tuple(calls) for name, calls in reader.calls.items()},
    )


NO_SCRIPT: Final = Script((), (), {})
"""The script of an agent program's run, which calls no model itself."""


class _Reading(msgspec.Struct):
    """The facts about a model call read so far."""

    pieces: list[Piece] = []
    was_asked: bool = False
    is_open: bool = False
    reason: FinishReason = "stop"
    is_reported: bool = False
    usage: Usage | None = None
    error: events.Error | None = None


class _Bracket(msgspec.Struct):
    """The facts about a tool call read so far."""

    name: str
    is_raw: bool
    started: events.ToolCallStarted | None = None
    steps: list[Event] = []
    warning: events.Warning | None = None
    is_cut_off: bool = False
    is_changed: bool = False
    completed: events.ToolCallCompleted | None = None


class _Reader:
    def __init__(self, run: RecordedRun) -> None:
        self.answers: list[Answer] = []
        self.summaries: list[Summary] = []
        self.calls: dict[str, list[Call]] = defaultdict(list)
        self._artifact_data = run.artifact_data
        self._model = _Reading()
        self._summary: events.UsageReported | None = None
        self._is_summary_input_logged = False
        """Whether the log has the input of the newest summary; logs before version 3 lack it."""
        self._tool: _Bracket | None = None

    # --- model calls -------------------------------------------------------------------------

    def on_model_input(self, event: events.ModelInput) -> None:
        if self._model.was_asked:
            # The previous call had no result; it is repeated with a smaller input.
            self._overflow()
        self._model.was_asked = event.purpose != "summary"
        self._is_summary_input_logged = event.purpose == "summary"

    def on_message_start(self, event: events.MessageStart) -> None:
        self._model.is_open = event.role == "assistant"

    def on_text(self, event: events.MessageUpdate) -> None:
        self._model.pieces.append(TextDelta(event.delta))

    def on_reasoning(self, event: events.ReasoningUpdate) -> None:
        self._model.pieces.append(ReasoningDelta(event.delta))

    def on_status(self, event: events.Status) -> None:
        if self._tool is not None and self._tool.started is not None:
            self.on_tool_event(event)
            return
        if event.message.startswith(_STOP_REASON):
            reason: Any = event.message.removeprefix(_STOP_REASON)
            self._model.reason = reason

    def on_usage(self, event: events.UsageReported) -> None:
        if event.purpose == "summary":
            self._summary = None if event.run_id is UNSET else event
            return
        self._model.is_reported = True
        self._model.usage = None if event.usage is UNSET else event.usage

    def on_error(self, event: events.Error) -> None:
        self._model.error = event

    def on_warning(self, event: events.Warning) -> None:
        if is_outside(event):
            return
        if self._tool is not None:
            self._tool.warning = event
        elif event.code == "provider_retry" and (retry := _RETRY.fullmatch(event.message)):
            _, attempt, attempts_max, cause = retry.groups()
            self._model.pieces.append(Retrying(int(attempt), int(attempts_max), cause, 0.0))

    def on_entry(self, event: events.EntryAppended) -> None:
        entry = event.entry
        if isinstance(entry, CompactionEntry):
            self._add_compaction(entry)
        elif entry.role == "tool":
            self._close_tool(entry)
        elif entry.role == "assistant":
            restored = text_offload.whole_entry(entry, self._artifact_data)
            assert isinstance(restored, MessageEntry)
            self._close_answer(restored)

    def _close_answer(self, entry: MessageEntry) -> None:
        call, self._model = self._model, _Reading()
        if entry.stop_reason in ("stop", "length", "tool_use"):
            pieces = [*call.pieces, *_list_kept_reasoning(entry), *_calls(entry)]
            reason = "tool_use" if entry.tool_calls is not UNSET else call.reason
            usage = None if entry.usage is UNSET else entry.usage
            self.answers.append(Answer((*pieces, Finished(reason, usage))))
            return
        failed = None if call.error is None else self._failure(call.error)
        overflowed = failed is not None and failed.overflowed
        opener = () if _has_text(call.pieces) else _opener(call, overflowed=overflowed)
        costs = () if call.usage is None else (UsageSoFar(call.usage),)
        # The usage comes before the text: it must be known before the run is stopped.
        retries = [piece for piece in call.pieces if isinstance(piece, Retrying)]
        content = call.pieces[len(retries) :]
        self.answers.append(Answer((*retries, *costs, *content, *opener), failed))

    def _failure(self, error: events.Error) -> Failed | None:
        """Return how the model call failed; None if the run failed for another reason."""
        if error.code not in MODEL_FAILURES:
            return None
        if error.code == _TOO_LONG:
            return Failed(error.cause, too_long=error.message)
        raw = b"" if error.raw_ref is UNSET else self._artifact_data[error.raw_ref]
        category = None if error.category is UNSET else error.category
        return Failed(
            without_category(category, error.cause),
            overflowed=error.code == "context_too_large",
            raw=raw,
            category=category,
        )

    def _add_compaction(self, entry: CompactionEntry) -> None:
        if entry.trigger == "overflow" and not self._is_summary_input_logged:
            self._overflow()
        reported, self._summary = self._summary, None
        if reported is None:
            self.summaries.append(Summary(()))
            return
        usage = None if reported.usage is UNSET else reported.usage
        self.summaries.append(Summary((TextDelta(entry.summary), Finished("stop", usage))))

    def on_end(self, _: events.AgentEnd) -> None:
        """Add a message or summary that began and has no entry, as cut off or failed."""
        if self._model.pieces:
            self.answers.append(Answer(tuple(self._model.pieces)))
        if self._summary is not None:
            usage = self._summary.usage
            pieces = () if usage is UNSET else (UsageSoFar(usage),)
            error = self._model.error
            failed = None if error is None or error.code != _TOO_LONG else self._failure(error)
            opened = (*pieces, ToolCallPiece("", "", ""))
            self.summaries.append(Summary(opened, is_cut_off=failed is None, failed=failed))

    def _overflow(self) -> None:
        """Add a call that was refused as too long, which only the compaction after it shows."""
        call, self._model = self._model, _Reading()
        failed = Failed("the input is too long", overflowed=True)
        self.answers.append(Answer(tuple(call.pieces), failed))

    # --- tool calls --------------------------------------------------------------------------

    def on_tool_start(self, event: events.ToolExecutionStart) -> None:
        self._tool = _Bracket(event.tool_name, is_raw=set(event.args) == {RAW_ARGUMENTS})

    def on_tool_started(self, event: events.ToolCallStarted) -> None:
        assert self._tool is not None
        self._tool.started = event

    def on_tool_event(self, event: Event) -> None:
        if self._tool is not None:
            self._tool.steps.append(event)

    def on_tool_update(self, event: events.ToolExecutionUpdate) -> None:
        assert self._tool is not None
        self._tool.steps.append(event)

    def on_tool_completed(self, event: events.ToolCallCompleted) -> None:
        assert self._tool is not None
        self._tool.is_cut_off = event.stop_reason is not UNSET
        self._tool.is_changed = event.changed_by is not UNSET
        self._tool.completed = event

    def _close_tool(self, entry: MessageEntry) -> None:
        call, self._tool = self._tool, None
        assert call is not None
        warning = call.warning
        if call.started is None:
            # Arguments that are not an object are refused before the tool sees them.
            if warning is not None and warning.code == _INVALID and not call.is_raw:
                self.calls[call.name].append(Call(invalid=warning.message))
            return
        restored = text_offload.whole_entry(entry, self._artifact_data)
        assert isinstance(restored, MessageEntry)
        is_error = entry.is_error is True
        if call.is_cut_off or (is_error and warning is None and not call.is_changed):
            self.calls[call.name].append(
                Call(steps=tuple(call.steps), **_get_execution_facts(call.started))
            )
            return
        self.calls[call.name].append(
            Call(
                steps=tuple(call.steps),
                result=_result(call, restored),
                failed_as=None if warning is None else warning.code,
                full=None if entry.artifact_id is UNSET else self._artifact_data[entry.artifact_id],
                **_get_execution_facts(call.completed),
            )
        )


def _get_execution_facts(
    event: events.ToolCallStarted | events.ToolCallCompleted | None,
) -> dict[str, Any]:
    """Return the execution facts of a call; empty for an event of an earlier version."""
    names = ("executed_by", "execution_env", "sandbox")
    values = {name: getattr(event, name, UNSET) for name in names}
    return {name: value for name, value in values.items() if value is not UNSET}


def _result(call: _Bracket, entry: MessageEntry) -> str:
    """Return the tool's result as logged, which may differ from the text for the model."""
    if call.is_changed and call.warning is not None:
        return call.warning.message
    return entry.text.removeprefix(_ERROR) if entry.is_error is True else entry.text


_TOO_LONG: Final = "answer_too_long"

MODEL_FAILURES: Final = frozenset({"provider_error", "context_too_large", _TOO_LONG})
"""The codes of ``error`` events of failed model calls; other codes come from the loop."""

_READ: Final[dict[type[Event], Callable[[_Reader, Any], None]]] = {
    events.ModelInput: _Reader.on_model_input,
    events.MessageStart: _Reader.on_message_start,
    events.MessageUpdate: _Reader.on_text,
    events.ReasoningUpdate: _Reader.on_reasoning,
    events.Status: _Reader.on_status,
    events.UsageReported: _Reader.on_usage,
    events.Error: _Reader.on_error,
    events.Warning: _Reader.on_warning,
    events.EntryAppended: _Reader.on_entry,
    events.ToolExecutionStart: _Reader.on_tool_start,
    events.ToolCallStarted: _Reader.on_tool_started,
    events.TodoUpdated: _Reader.on_tool_event,
    events.QuestionAsked: _Reader.on_tool_event,
    events.QuestionAnswered: _Reader.on_tool_event,
    events.QuestionRejected: _Reader.on_tool_event,
    events.ToolExecutionUpdate: _Reader.on_tool_update,
    events.ToolCallCompleted: _Reader.on_tool_completed,
    events.AgentEnd: _Reader.on_end,
}


def _list_kept_reasoning(entry: MessageEntry) -> list[Piece]:
    blocks = () if entry.reasoning_blocks is UNSET else entry.reasoning_blocks
    return [ReasoningKept(block) for block in blocks]


def _calls(entry: MessageEntry) -> list[Piece]:
    # Arguments that were not a JSON object are stored under one key, and replayed like an object.
    return [
        ToolCallPiece(call.runtime_tool_call_id, call.name, encode_json(call.args).decode())
        for call in (() if entry.tool_calls is UNSET else entry.tool_calls)
    ]


def _has_text(pieces: Iterable[Piece]) -> bool:
    return any(isinstance(piece, TextDelta | ReasoningDelta) for piece in pieces)


def _opener(call: _Reading, *, overflowed: bool) -> Sequence[Piece]:
    """Return the piece that opened an empty message, if there was one. It is not logged, because the
    answer was cut off before any visible part.
    """
    if not call.is_open:
        return ()
    if call.is_reported and call.usage is None:
        return (ToolCallPiece("", "", ""),)
    # The error of an answer that was refused before any content has a hint.
    if call.error is None or (overflowed and call.error.hint is UNSET):
        return (ReasoningKept(ReasoningBlock(dialect="", data={})),)
    return ()
