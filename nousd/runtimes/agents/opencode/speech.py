"""Passes the text and reasoning of the model of ``opencode serve`` to the listener as they arrive."""

from __future__ import annotations

from typing import Final

from nousd.runtimes.agents.interface import AgentListener
from nousd.runtimes.agents.opencode import messages
from nousd.runtimes.agents.raw_lines import CURRENT_LINE
from nousd.wire.objects.entries import Usage

_PARTS_MAX: Final = 1000
"""Maximum number of parts of one model call that are shown."""


class _ShownPart:
    """A part of the model's message that is shown as it arrives."""

    def __init__(self, type_: str) -> None:
        self.type = type_
        self.has_text = False


class Speech:
    """The parts of the current model call.

    ``speaker`` is the id of the message to the user; empty while the program summarizes its session for
    itself.
    """

    def __init__(self) -> None:
        self.speaker = ""
        self._shown: dict[str, _ShownPart] = {}

    def clear(self) -> None:
        """Forget all parts, because a model call begins or is repeated."""
        self._shown.clear()

    async def take_part(self, listener: AgentListener, part: messages.Part) -> None:
        """Handle the beginning or end of a part. At its end, show its text if it has not streamed."""
        shown = self._shown.get(part.id)
        if shown is None:
            if len(self._shown) >= _PARTS_MAX:
                return
            shown = self._shown[part.id] = _ShownPart(part.type)
        if part.time is not None and part.time.end is not None and not shown.has_text:
            await _show(listener, shown, part.text)

    async def take_delta(self, listener: AgentListener, note: messages.Delta) -> None:
        """Show a piece of a part that has begun."""
        shown = self._shown.get(note.part_id)
        if shown is not None and note.field_name == "text":
            await _show(listener, shown, note.delta)

    async def take_step(self, listener: AgentListener, part: messages.Part) -> None:
        """Handle the end of a model call."""
        self.clear()
        await listener.message_ends("length" if part.reason == "length" else "stop")
        if part.tokens is not None:
            await listener.usage(_usage(part.tokens), cost_usd=part.cost)


async def _show(listener: AgentListener, shown: _ShownPart, text: str) -> None:
    if not text:
        return
    # A piece of a text: the event is not kept.
    CURRENT_LINE.set(b"")
    shown.has_text = True
    await (listener.text if shown.type == "text" else listener.reasoning)(text)


def _usage(counts: messages.TokenCounts) -> Usage:
    """Return the tokens of a model call; the input includes cached tokens, the output reasoning."""
    input_tokens = counts.input + counts.cache.read + counts.cache.write
    output_tokens = counts.output + counts.reasoning
    return Usage(
        input=input_tokens,
        output=output_tokens,
        total=input_tokens + output_tokens,
        cache_read=counts.cache.read,
        cache_write=counts.cache.write,
        reasoning=counts.reasoning,
    )
