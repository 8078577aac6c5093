"""The room for one answer of a model: how much more text, reasoning and arguments it may have.

A model server is foreign code, and its stream need not end. Whoever receives an answer takes each piece
into its room; what has none ends the call, and with it the run.
"""

from __future__ import annotations

from typing import NamedTuple

from nousd.errors import AnswerTooLong
from nousd.runtimes.interface import AnswersOfRun
from nousd.wire.codec.envelope import encode_json, scrub, utf8_size
from nousd.wire.objects.entries import ReasoningBlock


class AnswerBounds(NamedTuple):
    """The settings ``answer_bytes_max`` and ``run_answer_bytes_max``."""

    of_call: int
    of_run: int


class AnswerRoom:
    """The room for the answer of one model call.

    Args:
        answers: what was said before in the same run; it grows with this answer.
    """

    def __init__(self, bounds: AnswerBounds, answers: AnswersOfRun) -> None:
        self._bounds = bounds
        self._answers = answers
        left_to_run = max(0, bounds.of_run - answers.bytes)
        self._is_bound_by_run = left_to_run < bounds.of_call
        self._left = min(left_to_run, bounds.of_call)
        self._held = 0
        self._called = 0
        self._kept = 0

    def take(self, text: str) -> str:
        """Take a piece of text or reasoning; return the part that there is room for."""
        size = len(text) if text.isascii() else utf8_size(text)
        if size > self._left:
            # A character that is cut in two is left out.
            text = scrub(text).encode()[: self._left].decode(errors="ignore")
            size = self._left
        self._left -= size
        self._answers.bytes += size
        return text

    def hold(self, size: int) -> None:
        """Take the arguments of tool calls, of which ``size`` bytes have come so far.

        Raises:
            AnswerTooLong: there is no room for them.
        """
        more = size - self._held
        if more > self._left:
            raise self.build_exceeded_error()
        self._left -= more
        self._answers.bytes += more
        self._held = size

    def call(self, arguments: str) -> None:
        """Take a whole tool call, whose arguments may have been held already.

        Raises:
            AnswerTooLong: there is no room for it.
        """
        self._called += utf8_size(arguments)
        self.hold(max(self._held, self._called))

    def keep(self, block: ReasoningBlock) -> None:
        """Take reasoning in its provider's form. It mostly repeats what was taken as text, so it has
        the same room once more.

        Raises:
            AnswerTooLong: there is no room for it.
        """
        self._kept += len(encode_json(block.data))
        if self._kept > self._bounds.of_call:
            raise _of_call(self._bounds.of_call)

    def begin_again(self) -> None:
        """Give back the room of arguments that came in an attempt which failed."""
        self.hold(0)

    def build_exceeded_error(self) -> AnswerTooLong:
        """Return the error of an answer that needs more room than there is."""
        if self._is_bound_by_run:
            return AnswerTooLong(
                f"the model's answers in this run have more than {self._bounds.of_run} bytes;"
                " raise run_answer_bytes_max"
            )
        return _of_call(self._bounds.of_call)


def _of_call(bytes_max: int) -> AnswerTooLong:
    return AnswerTooLong(
        f"the model's answer has more than {bytes_max} bytes; raise answer_bytes_max"
    )
