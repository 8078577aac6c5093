"""The model call that writes the summary of a compaction. Users do not see its stream. If the model
fails, a mechanical summary replaces the answer; only an answer beyond the bounds is an error.
"""

from __future__ import annotations

import logging
from typing import Final

import trio

from nousd.errors import ProviderError
from nousd.machine.context import compaction
from nousd.machine.context.model_input import ModelInput
from nousd.providers.interface import (
    Alive,
    Piece,
    Provider,
    ReasoningDelta,
    Retrying,
    TextDelta,
    ToolCallPiece,
)
from nousd.providers.models.prices import Price
from nousd.runtimes.answer_room import AnswerRoom
from nousd.runtimes.interface import Report
from nousd.runtimes.native.metering import Meter
from nousd.tools.interface import ExtendIdleDeadline
from nousd.tools.secrets_interface import NO_SECRETS, Secrets
from nousd.wire.limits import SUMMARY_CHARS_MAX

_log = logging.getLogger(__name__)

QUICK_ENTRIES_MAX: Final = 256
"""Maximum entries that are processed in the event loop, which takes about a millisecond."""

_COLLECT_CHARS_MAX = 4 * SUMMARY_CHARS_MAX
"""Characters of an answer from which no further text is collected; the rest is only counted."""


async def write_summary(
    provider: Provider,
    request: ModelInput,
    cut: compaction.CutPoint,
    extend_idle_deadline: ExtendIdleDeadline,
    *,
    room: AnswerRoom,
    price: Price | None,
    report: Report,
    secrets: Secrets = NO_SECRETS,
) -> str:
    """Return the model's summary, or a mechanical one if the model fails or returns nothing.

    Args:
        price: the price of the model, if it is known.
        report: receives the figures of the call, unless it had neither content nor usage.
        secrets: removed from the summary.

    Raises:
        AnswerTooLong: the answer exceeds its bounds.
    """
    meter = Meter(request, price)
    texts: list[str] = []
    collected = 0

    async def receive(piece: Piece) -> None:
        nonlocal collected
        meter.note(piece)
        _take(piece, room)
        extend_idle_deadline(piece.delay_seconds if isinstance(piece, Retrying) else 0.0)
        if isinstance(piece, TextDelta) and collected < _COLLECT_CHARS_MAX:
            collected += len(piece.text)
            texts.append(piece.text)

    try:
        await provider.generate(request, receive)
    except ProviderError as error:
        _log.warning("the model could not summarise: %s", error)
        texts.clear()
    finally:
        figures = meter.figures_if_any()
        if figures is not None:
            await report(figures)
    summary = secrets.redact_output("".join(texts))
    if bounded := compaction.truncate_summary(summary):
        return bounded
    if len(cut.dropped) <= QUICK_ENTRIES_MAX:
        return compaction.mechanical_summary(cut)
    return await trio.to_thread.run_sync(compaction.mechanical_summary, cut)


def _take(piece: Piece, room: AnswerRoom) -> None:
    """Count a piece against the bounds of the answer, even if it is not part of the summary."""
    match piece:
        case TextDelta(text) | ReasoningDelta(text):
            if len(room.take(text)) < len(text):
                raise room.build_exceeded_error()
        case Alive(held_bytes):
            room.hold(held_bytes)
        case ToolCallPiece():
            room.call(piece.arguments)
        case Retrying():
            room.begin_again()
