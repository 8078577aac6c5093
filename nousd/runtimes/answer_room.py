"""Bounds the size of a model's answer: text, reasoning and tool call arguments together.

A model server is not trusted to end its stream. The receiver of an answer charges each piece to an
``AnswerRoom``; a piece that does not fit ends the call, and with it the run.
"""

from __future__ import annotations

from typing import NamedTuple

from nousd.errors import AnswerTooLong
from nousd.runtimes.interface import AnswersOfRun
from nousd.wire.codec.envelope import encode_json, scrub, utf8_size
from nousd.wire.objects.entries import ReasoningBlock


class AnswerBounds(NamedTuple):
    """The settings ``answer_bytes_max`` and ``run_answer_bytes_max``."""

    per_call: int
    per_run: int


class AnswerRoom:
    """The bytes left for the answer of one model call.

    Args:
        answers: the size of the run's earlier answers; this answer adds to it.
    """

    def __init__(self, bounds: AnswerBounds, answers: AnswersOfRun) -> None:
        self._bounds = bounds
        self._answers = answers
        run_bytes_left = max(0, bounds.per_run - answers.bytes)
        self._is_bound_by_run = run_bytes_left < bounds.per_call
        self._bytes_left = min(run_bytes_left, bounds.per_call)
        self._held_bytes = 0
        self._called_bytes = 0
        self._kept_bytes = 0

    def take(self, text: str) -> str:
        """Charge a piece of text or reasoning; return the part that fits."""
        size = len(text) if text.isascii() else utf8_size(text)
        if size > self._bytes_left:
            # A character that is cut in two is dropped.
            text = scrub(text).encode()[: self._bytes_left].decode(errors="ignore")
            size = self._bytes_left
        self._bytes_left -= size
        self._answers.bytes += size
        return text

    def hold(self, size: int) -> None:
        """Charge the arguments of tool calls, of which ``size`` bytes in total have arrived.

        Raises:
            AnswerTooLong: they do not fit.
        """
        added = size - self._held_bytes
        if added > self._bytes_left:
            raise self.build_exceeded_error()
        self._bytes_left -= added
        self._answers.bytes += added
        self._held_bytes = size

    def call(self, arguments: str) -> None:
        """Charge a complete tool call, whose arguments ``hold`` may have charged already.

        Raises:
            AnswerTooLong: it does not fit.
        """
        self._called_bytes += utf8_size(arguments)
        self.hold(max(self._held_bytes, self._called_bytes))

    def keep(self, block: ReasoningBlock) -> None:
        """Charge reasoning in its provider's form. It mostly repeats text that ``take`` has charged, so
        it has a bound of the same size for itself.

        Raises:
            AnswerTooLong: it does not fit.
        """
        self._kept_bytes += len(encode_json(block.data))
        if self._kept_bytes > self._bounds.per_call:
            raise _build_call_error(self._bounds.per_call)

    def begin_again(self) -> None:
        """Release the bytes charged for the arguments of a failed attempt."""
        self.hold(0)

    def build_exceeded_error(self) -> AnswerTooLong:
        """Return the error for an answer that exceeds its bounds."""
        if self._is_bound_by_run:
            return AnswerTooLong(
                f"the model's answers in this run have more than {self._bounds.per_run} bytes;"
                " raise run_answer_bytes_max"
            )
        return _build_call_error(self._bounds.per_call)


def _build_call_error(bytes_max: int) -> AnswerTooLong:
    return AnswerTooLong(
        f"the model's answer has more than {bytes_max} bytes; raise answer_bytes_max"
    )
