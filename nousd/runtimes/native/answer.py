"""One model call as events: the streamed message, its usage, and the requested tool calls.

The message is opened when its first content arrives, so an attempt without content leaves no trace.
Every call that ends, successful or not, leaves exactly one message.

The daemon's own secrets are removed from all that the model says, before anything is logged: from texts
as they stream, from tool calls before they are judged.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import msgspec
from msgspec import UNSET

from nousd.errors import AnswerTooLong, ContextOverflow, ProviderError, RunFailed
from nousd.machine.context.model_input import ModelInput
from nousd.machine.context.text_offload import deltas
from nousd.machine.session.closing_events import tool_calls_of
from nousd.machine.session.usage import CallFigures
from nousd.providers.interface import (
    NO_BLOBS,
    Alive,
    Blobs,
    Finished,
    Piece,
    Provider,
    ReasoningDelta,
    ReasoningKept,
    Retrying,
    TextDelta,
    ToolCallPiece,
    UsageSoFar,
)
from nousd.providers.models.prices import Price
from nousd.runtimes.calls.admission import RAW_ARGUMENTS
from nousd.runtimes.interface import NativeHost
from nousd.runtimes.native.answer_room import AnswerBounds, AnswerRoom
from nousd.runtimes.native.metering import Meter
from nousd.tools.secrets_interface import NO_SECRETS, Secrets, SecretsInStream
from nousd.wire import events
from nousd.wire.codec.envelope import is_nested_too_deep
from nousd.wire.codec.unset import or_unset
from nousd.wire.limits import DELTA_BYTES_MAX
from nousd.wire.objects.entries import MessageEntry, ReasoningBlock, StopReason, ToolCall

_SHORT_CHARS: Final = DELTA_BYTES_MAX // len(r"\u0000")
"""Characters that fit into one delta even if each of them is escaped."""


async def ask_model(
    host: NativeHost,
    provider: Provider,
    request: ModelInput,
    blobs: Blobs = NO_BLOBS,
    *,
    bounds: AnswerBounds,
    price: Price | None = None,
    secrets: Secrets = NO_SECRETS,
) -> tuple[ToolCall, ...]:
    """Stream one answer into the log and return its tool calls.

    Args:
        price: the price of the model, if it is known.
        secrets: removed from the answer.

    Raises:
        ContextOverflow: before any content; nothing was written.
        AnswerTooLong: the answer is beyond the bounds; what came before is in the log, without calls.
        RunFailed: ``provider_error`` or, behind some content, ``context_too_large``; with the server's
            own words as its cause.
    """
    room = AnswerRoom(bounds, host.answers)
    answer = _Answer(host, provider, request, Meter(request, price), room=room, secrets=secrets)
    try:
        await answer.be_given(blobs)
    except AnswerTooLong:
        await answer.open()
        raise
    except ContextOverflow as overflow:
        if answer.message_id is not None:
            raise await provider_failed(host, overflow) from overflow
        raise
    except ProviderError as error:
        if answer.retried:
            await host.stream(
                events.Warning(
                    **host.tracker.where, code="provider_retry_exhausted", message=str(error)
                )
            )
        raise await provider_failed(host, error) from error
    return await answer.close()


async def provider_failed(host: NativeHost, error: ProviderError, *, hint: str = "") -> RunFailed:
    """Open a message for the failed answer if it has none, and return the failure to raise."""
    if host.tracker.message is None:
        await host.stream(
            events.MessageStart(
                **host.tracker.where, message_id=host.new_id("msg"), role="assistant"
            )
        )
    code, message = "provider_error", "provider stream returned error"
    if isinstance(error, ContextOverflow):
        code, message = "context_too_large", "the input is too long for the model"
    return RunFailed(code, message, str(error), raw=error.raw, hint=hint, category=error.category)


class _Streamed:
    """A text of the answer while it streams, without secrets.

    Args:
        update: the type of its events.
    """

    def __init__(
        self, update: type[events.MessageUpdate | events.ReasoningUpdate], secrets: Secrets
    ) -> None:
        self.update = update
        self._secrets = secrets

    @cached_property
    def filter(self) -> SecretsInStream[str]:
        """Removes the secrets; made for the first piece, because the key of this very call may be known
        only since it was sent.
        """
        return self._secrets.text_stream()


class _Answer:
    """Receives the pieces of one model call and logs them."""

    def __init__(
        self,
        host: NativeHost,
        provider: Provider,
        request: ModelInput,
        meter: Meter,
        *,
        room: AnswerRoom,
        secrets: Secrets,
    ) -> None:
        self._host = host
        self._provider = provider
        self._request = request
        self._meter = meter
        self._room = room
        self._secrets = secrets
        self.message_id: str | None = None
        self.retried = False
        self._text = _Streamed(events.MessageUpdate, secrets)
        self._reasoning = _Streamed(events.ReasoningUpdate, secrets)
        self._reasoning_blocks: list[ReasoningBlock] = []
        self._calls: list[ToolCallPiece] = []
        self._finished = Finished("stop")

    async def be_given(self, blobs: Blobs) -> None:
        """Make the call. If it breaks off in any way, what came so far is logged."""
        is_whole = False
        try:
            await self._provider.generate(self._request, self._receive, blobs)
            is_whole = True
        except ProviderError:
            await self._show_rest()
            raise
        finally:
            figures = None if is_whole else self._meter.figures_if_any()
            if figures is not None:
                await self._host.stream(self._reported(figures, self.message_id))

    def _reported(self, figures: CallFigures, message_id: str | None) -> events.UsageReported:
        return figures.reported(
            **self._host.tracker.where,
            message_id=or_unset(message_id),
            correlation_id=self._host.correlation_id,
        )

    async def _receive(self, piece: Piece) -> None:
        self._meter.note(piece)
        match piece:
            case TextDelta(text):
                await self._take(self._text, text)
            case ReasoningDelta(text):
                await self._take(self._reasoning, text)
            case ReasoningKept(block):
                await self.open()
                self._room.keep(block)
                self._reasoning_blocks.append(block)
            case ToolCallPiece():
                await self.open()
                self._room.call(piece.arguments)
                self._calls.append(piece)
            case Retrying():
                await self._retrying(piece)
            case Finished():
                self._finished = piece
                await self._show_rest()
            case Alive(held_bytes):
                self._host.extend_idle_deadline(0.0)
                self._room.hold(held_bytes)
            case UsageSoFar():
                self._host.extend_idle_deadline(0.0)

    async def _take(self, streamed: _Streamed, text: str) -> None:
        """Show a piece of the answer, as far as there is room for it. What was held back at a cut is
        not shown: it may be the beginning of a secret.
        """
        kept = self._room.take(text)
        if kept:
            await self._show(streamed, streamed.filter.feed(kept))
        if len(kept) < len(text):
            raise self._room.exceeded()

    async def _show(self, streamed: _Streamed, text: str) -> None:
        # The first content is in one batch for the log with the beginning of its message.
        beginning = () if self.message_id is not None else (self._begin(),)
        if not text:  # all of it may be the beginning of a secret
            await self._host.stream(*beginning)
            self._host.extend_idle_deadline(0.0)
            return
        where: dict[str, Any] = {**self._host.tracker.where, "message_id": self.message_id}
        # A short one fits into an event in any case.
        parts = (text,) if len(text) <= _SHORT_CHARS else deltas(text)
        await self._host.stream(
            *beginning, *[streamed.update(**where, delta=delta) for delta in parts]
        )

    async def _show_rest(self) -> None:
        """Show what was held back, because the answer has ended; one that is aborted ends with what was
        shown.
        """
        for streamed in (self._reasoning, self._text):
            if rest := streamed.filter.finish():
                await self._show(streamed, rest)

    async def open(self) -> str:
        """Begin the message if it has not begun yet; return its id."""
        if self.message_id is None:
            await self._host.stream(self._begin())
        assert self.message_id is not None
        return self.message_id

    def _begin(self) -> events.MessageStart:
        """Return the event that begins the message."""
        self.message_id = self._host.new_id("msg")
        return events.MessageStart(
            **self._host.tracker.where, message_id=self.message_id, role="assistant"
        )

    async def _retrying(self, retry: Retrying) -> None:
        self.retried = True
        self._room.begin_again()
        self._host.extend_idle_deadline(retry.delay_seconds)
        text = (
            f"{self._provider.name} retry attempt {retry.attempt}/{retry.attempts_max} "
            f"after {retry.cause}"
        )
        await self._host.stream(
            events.Warning(**self._host.tracker.where, code="provider_retry", message=text)
        )

    async def close(self) -> tuple[ToolCall, ...]:
        """End the message, write its entry, and return its calls under our ids.

        With calls, the end is on its way to the disk: each call waits for it before it begins.
        """
        message_id = await self.open()
        calls = tool_calls_of(message_id, [self._without_secrets(call) for call in self._calls])
        log = self._host.stream if calls else self._host.commit
        await log(*self._remarks(message_id, has_calls=bool(calls)), *self._ends(message_id, calls))
        return calls

    def _without_secrets(self, call: ToolCallPiece) -> tuple[str, str, dict[str, Any]]:
        """Return a call's id, name and arguments, as they are judged, logged and run."""
        redact = self._secrets.redact_output
        args: dict[str, Any] = self._secrets.redact_output_json(_arguments(call.arguments))
        return redact(call.id), redact(call.name), args

    def _kept(self) -> tuple[ReasoningBlock, ...]:
        """Return the reasoning that the provider needs back; nothing if a secret can be read in it.

        A server accepts only what it wrote, and not a part of it either. It is asked as if the answer
        had been another model's, with the text alone.
        """
        blocks = tuple(self._reasoning_blocks)
        data = [block.data for block in blocks]
        return blocks if self._secrets.redact_output_json(data) == data else ()

    def _remarks(self, message_id: str, *, has_calls: bool) -> list[events.Event]:
        where = self._host.tracker.where
        remarks: list[events.Event] = []
        reason = "tool_use" if has_calls else self._finished.reason
        if reason != "stop":
            remarks.append(events.Status(**where, message=f"provider_stop_reason: {reason}"))
        usage = self._finished.usage
        if usage is not None:
            text = f"provider_usage: input={usage.input} output={usage.output} total={usage.total}"
            remarks.append(events.Status(**where, message=text))
        return [*remarks, self._reported(self._meter.figures(), message_id)]

    def _ends(self, message_id: str, calls: tuple[ToolCall, ...]) -> list[events.Event]:
        host = self._host
        message = host.tracker.message
        assert message is not None
        text = message.text
        usage = or_unset(self._finished.usage)
        # Some servers say "stop" although the message asks for tools.
        reason: StopReason = "tool_use" if calls else _without_calls(self._finished.reason)
        entry = MessageEntry(
            id=message_id,
            parent_id=or_unset(host.leaf_id),
            role="assistant",
            text=text,
            run_id=host.tracker.run_id,
            turn_kind=host.tracker.turn_kind,
            created_at=host.now(),
            provider=self._request.provider,
            model=self._request.model,
            reasoning=message.reasoning or UNSET,
            reasoning_blocks=self._kept() or UNSET,
            tool_calls=calls or UNSET,
            stop_reason=reason,
            usage=usage,
        )
        return [
            events.MessageEnd(
                **host.tracker.where,
                message_id=message_id,
                text=text,
                stop_reason=reason,
                usage=usage,
            ),
            events.EntryAppended(
                session_id=host.tracker.session_id, run_id=host.tracker.run_id, entry=entry
            ),
        ]


def _without_calls(reason: str) -> StopReason:
    return "length" if reason == "length" else "stop"


def _arguments(raw: str) -> dict[str, Any]:
    """Parse a call's arguments. Anything but a JSON object is kept as text under one key.

    So is an object that nests too deep: events with it could be written but not read.
    """
    if not raw.strip():
        return {}
    try:
        args = None if is_nested_too_deep(raw.encode()) else msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError):
        args = None
    return args if isinstance(args, dict) else {RAW_ARGUMENTS: raw}
