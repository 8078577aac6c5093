"""Writes one message of a model into the log while it streams, for every runtime.

The message is opened when its first content arrives, so an answer without content leaves no trace. The
daemon's own secrets are removed from all texts before they are logged.
"""

from __future__ import annotations

from functools import cached_property
from io import StringIO
from typing import Any, Final

from msgspec import UNSET, UnsetType

from nousd.machine.context.text_offload import deltas
from nousd.runtimes.answer_room import AnswerRoom
from nousd.runtimes.interface import TurnHost
from nousd.tools.secrets_interface import Secrets, SecretsInStream
from nousd.wire import events
from nousd.wire.codec.unset import or_unset
from nousd.wire.limits import DELTA_BYTES_MAX
from nousd.wire.objects.entries import MessageEntry, StopReason, ToolCall, Usage

_SHORT_CHARS: Final = DELTA_BYTES_MAX // len(r"\u0000")
"""Number of characters that fit into one delta even if each of them is escaped."""


class StreamedText:
    """A text of the message, which streams without its secrets.

    Args:
        update: the event type of its pieces.
    """

    def __init__(
        self, update: type[events.MessageUpdate | events.ReasoningUpdate], secrets: Secrets
    ) -> None:
        self.update = update
        self.shown = StringIO()
        self._secrets = secrets

    @cached_property
    def filter(self) -> SecretsInStream[str]:
        """Removes the secrets. It is made with the first piece, because the key of this very call may
        become known only when the call is sent.
        """
        return self._secrets.text_stream()


class MessageWriter:
    """Writes one assistant message.

    Args:
        room: bounds the size of the message; content that does not fit ends the answer.
        secrets: removed from its texts.
    """

    def __init__(self, host: TurnHost, room: AnswerRoom, secrets: Secrets) -> None:
        self.message_id: str | None = None
        self._host = host
        self._room = room
        self.text = StreamedText(events.MessageUpdate, secrets)
        self.reasoning = StreamedText(events.ReasoningUpdate, secrets)

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

    async def write(self, streamed: StreamedText, text: str) -> None:
        """Show a piece of ``text`` or ``reasoning``, as far as it fits. At a cut, the text that the
        secret filter still holds back is not shown: it may be the beginning of a secret.

        Raises:
            AnswerTooLong: not all of it fits.
        """
        kept = self._room.take(text)
        if kept:
            await self._show(streamed, streamed.filter.feed(kept))
        if len(kept) < len(text):
            raise self._room.build_exceeded_error()

    async def _show(self, streamed: StreamedText, text: str) -> None:
        # The beginning of the message and its first content are one batch for the log.
        beginning = () if self.message_id is not None else (self._begin(),)
        if not text:  # all of it may be the beginning of a secret
            await self._host.stream(*beginning)
            self._host.extend_idle_deadline(0.0)
            return
        streamed.shown.write(text)
        where: dict[str, Any] = {**self._host.tracker.where, "message_id": self.message_id}
        # A short text always fits into one event.
        parts = (text,) if len(text) <= _SHORT_CHARS else deltas(text)
        await self._host.stream(
            *beginning, *[streamed.update(**where, delta=delta) for delta in parts]
        )

    async def show_rest(self) -> None:
        """Show the text that the secret filters hold back, because the answer is complete. An aborted
        answer ends without it.
        """
        for streamed in (self.reasoning, self.text):
            if rest := streamed.filter.finish():
                await self._show(streamed, rest)

    def build_end(
        self,
        *,
        model: str,
        stop_reason: StopReason,
        calls: tuple[ToolCall, ...] = (),
        usage: Usage | UnsetType = UNSET,
        raw_ref: str | UnsetType = UNSET,
        **more: Any,
    ) -> list[events.Event]:
        """Return the events that end the open message and append its entry.

        Args:
            raw_ref: the id of the program's line from which the end was made.
            more: further fields of the entry.
        """
        host, message_id = self._host, self.message_id
        assert message_id is not None
        text = self.text.shown.getvalue()
        entry = MessageEntry(
            id=message_id,
            parent_id=or_unset(host.leaf_id),
            role="assistant",
            text=text,
            run_id=host.tracker.run_id,
            turn_kind=host.tracker.turn_kind,
            created_at=host.now(),
            model=model,
            reasoning=self.reasoning.shown.getvalue() or UNSET,
            tool_calls=calls or UNSET,
            stop_reason=stop_reason,
            usage=usage,
            **more,
        )
        return [
            events.MessageEnd(
                **host.tracker.where,
                message_id=message_id,
                text=text,
                stop_reason=stop_reason,
                usage=usage,
                raw_ref=raw_ref,
            ),
            events.EntryAppended(
                session_id=host.tracker.session_id, run_id=host.tracker.run_id, entry=entry
            ),
        ]
