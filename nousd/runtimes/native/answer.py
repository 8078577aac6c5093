"""Logs one model call as events: the streamed message, its usage, and the requested tool calls.

The message is opened when its first content arrives, so an attempt without content leaves no message.
Every call that ends, successful or not, leaves exactly one, unless the loop repeats it with a smaller
input.

The daemon's own secrets are removed from the model's output before it is logged: from texts as they
stream, and from tool calls before they are judged.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from nousd.errors import AnswerTooLong, ContextOverflow, ProviderError, RunFailed
from nousd.machine.context.model_input import ModelInput
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
from nousd.runtimes.answer_room import AnswerBounds, AnswerRoom
from nousd.runtimes.calls.admission import RAW_ARGUMENTS
from nousd.runtimes.interface import NativeHost
from nousd.runtimes.message_writer import MessageWriter
from nousd.runtimes.native.metering import Meter
from nousd.tools.secrets_interface import NO_SECRETS, Secrets
from nousd.wire import events
from nousd.wire.codec.decoding import decode_json
from nousd.wire.codec.envelope import is_nested_too_deep
from nousd.wire.codec.unset import or_unset
from nousd.wire.objects.entries import ReasoningBlock, StopReason, ToolCall


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
        ContextOverflow: the input is too long; no message was opened.
        AnswerTooLong: the answer exceeds the bounds; the part within them is in the log, without calls.
        RunFailed: ``provider_error`` or, after some content, ``context_too_large``; with the server's
            own words as its cause.
    """
    room = AnswerRoom(bounds, host.answers)
    answer = _Answer(host, provider, request, Meter(request, price), room=room, secrets=secrets)
    try:
        await answer.make_call(blobs)
    except AnswerTooLong:
        await answer.message.open()
        raise
    except ContextOverflow as overflow:
        if answer.message.message_id is not None:
            raise await provider_failed(host, overflow) from overflow
        raise
    except ProviderError as error:
        if answer.has_retried:
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
        self.message = MessageWriter(host, room, secrets)
        self.has_retried = False
        self._reasoning_blocks: list[ReasoningBlock] = []
        self._calls: list[ToolCallPiece] = []
        self._finished = Finished("stop")

    async def make_call(self, blobs: Blobs) -> None:
        """Make the call. If it breaks off in any way, log the answer so far."""
        is_complete = False
        try:
            await self._provider.generate(self._request, self._receive, blobs)
            is_complete = True
        except ProviderError:
            await self.message.show_rest()
            raise
        finally:
            figures = None if is_complete else self._meter.figures_if_any()
            if figures is not None:
                await self._host.stream(self._build_usage_report(figures, self.message.message_id))

    def _build_usage_report(
        self, figures: CallFigures, message_id: str | None
    ) -> events.UsageReported:
        return figures.to_event(
            **self._host.tracker.where,
            message_id=or_unset(message_id),
            correlation_id=self._host.correlation_id,
        )

    async def _receive(self, piece: Piece) -> None:
        self._meter.note(piece)
        match piece:
            case TextDelta(text):
                await self.message.write(self.message.text, text)
            case ReasoningDelta(text):
                await self.message.write(self.message.reasoning, text)
            case ReasoningKept(block):
                await self.message.open()
                self._room.keep(block)
                self._reasoning_blocks.append(block)
            case ToolCallPiece():
                await self.message.open()
                self._room.call(piece.arguments)
                self._calls.append(piece)
            case Retrying():
                await self._report_retry(piece)
            case Finished():
                self._finished = piece
                await self.message.show_rest()
            case Alive(held_bytes):
                self._host.extend_idle_deadline(0.0)
                self._room.hold(held_bytes)
            case UsageSoFar():
                self._host.extend_idle_deadline(0.0)

    async def _report_retry(self, retry: Retrying) -> None:
        self.has_retried = True
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
        """End the message, log its entry, and return its calls under the daemon's ids.

        The entry need not be durable yet: a call waits until it is before it has an effect, and callers
        that wait for the run wait for it too.
        """
        message_id = await self.message.open()
        calls = tool_calls_of(message_id, [self._without_secrets(call) for call in self._calls])
        remarks = self._remarks(message_id, has_calls=bool(calls))
        await self._host.stream(*remarks, *self._ends(calls))
        return calls

    def _without_secrets(self, call: ToolCallPiece) -> tuple[str, str, dict[str, Any]]:
        """Return a call's id, name and arguments without secrets, as they are judged, logged and run."""
        redact = self._secrets.redact_output
        args: dict[str, Any] = self._secrets.redact_output_json(_arguments(call.arguments))
        return redact(call.id), redact(call.name), args

    def _select_reasoning_blocks(self) -> tuple[ReasoningBlock, ...]:
        """Return the reasoning that the provider needs back; none if it contains a secret.

        A server accepts only all of its own unchanged reasoning. Without it, the next call sends the
        text alone, like an answer of another model.
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
        return [*remarks, self._build_usage_report(self._meter.figures(), message_id)]

    def _ends(self, calls: tuple[ToolCall, ...]) -> list[events.Event]:
        # Some servers say "stop" although the message asks for tools.
        reason: StopReason = "tool_use" if calls else _without_calls(self._finished.reason)
        return self.message.build_end(
            provider=self._request.provider,
            model=self._request.model,
            reasoning_blocks=self._select_reasoning_blocks() or UNSET,
            calls=calls,
            stop_reason=reason,
            usage=or_unset(self._finished.usage),
        )


def _without_calls(reason: str) -> StopReason:
    return "length" if reason == "length" else "stop"


def _arguments(raw: str) -> dict[str, Any]:
    """Parse a call's arguments. Anything but a JSON object is kept as text under one key.

    So is an object that is nested too deep: its events could be written but not read.
    """
    if not raw.strip():
        return {}
    try:
        args = None if is_nested_too_deep(raw.encode()) else decode_json(raw)
    except (msgspec.MsgspecError, UnicodeError):
        args = None
    return args if isinstance(args, dict) else {RAW_ARGUMENTS: raw}
