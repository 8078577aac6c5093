"""The functions of nousd that one thread calls, in order, to count the layers of a path.

A call is one entry into a function of ``nousd``; resuming a coroutine or generator is not a call. A
comprehension belongs to its function, as in Python 3.12. Calls of other threads are not recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import trio

import nousd

_ROOT: Final = f"{Path(nousd.__file__).parent}/"

_COMPREHENSIONS: Final = ("<listcomp>", "<setcomp>", "<dictcomp>")

_AFTER_WAIT: Final = 0b11
"""The bits in the argument of the instruction RESUME that are 0 at the beginning of a function only."""


class RecordedCall(str):
    """One call, as ``path/of/module.py:Class.function``, and the task of trio that made it."""

    __slots__ = ("task",)

    task: trio.lowlevel.Task


@contextmanager
def recorded_calls() -> Iterator[list[RecordedCall]]:
    """Record the calls made within the block."""
    calls: list[RecordedCall] = []

    def note(frame: FrameType, what: str, _: Any) -> None:
        code = frame.f_code
        if what != "call" or not code.co_filename.startswith(_ROOT):
            return
        goes_on = code.co_code[frame.f_lasti + 1] & _AFTER_WAIT
        if not goes_on and code.co_name not in _COMPREHENSIONS:
            call = RecordedCall(f"{code.co_filename.removeprefix(_ROOT)}:{code.co_qualname}")
            call.task = trio.lowlevel.current_task()
            calls.append(call)

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def way(calls: Sequence[str], first: str, last: str) -> list[str]:
    """Return the calls from the first one of ``first`` to the next one of ``last``, both included."""
    begin = next(index for index, call in enumerate(calls) if call.endswith(first))
    end = next(index for index in range(begin, len(calls)) if calls[index].endswith(last))
    return list(calls[begin : end + 1])


def in_one_task(calls: Sequence[RecordedCall], first: str) -> list[RecordedCall]:
    """Return the calls of the task that made the first one of ``first``, from there on. What others do
    meanwhile, such as a commit, is left out.
    """
    begin = next(index for index, call in enumerate(calls) if call.endswith(first))
    return [call for call in calls[begin:] if call.task is calls[begin].task]


def files(calls: Sequence[str]) -> list[str]:
    """Return the files of the calls in the order in which they are first entered."""
    return list(dict.fromkeys(call.partition(":")[0] for call in calls))
