"""The interface of a view, which renders the event stream in the vocabulary of another system.

A stream numbers frames, keeps its place and reads the log by itself; all of that is the same for every
view. A new view is a file that implements ``EventView`` and a row of the bridge's table of routes that
names it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class RenderedFrame(NamedTuple):
    """One frame: ``data`` is a single line without its LF, ``type`` the kind that a stream announces
    beside the data, if the other system looks for it there.
    """

    data: bytes
    type: str | None = None


class EventView(Protocol):
    """Renders events of the log, each by itself, so that a stream can begin anywhere.

    A view is pure and keeps no state: the same line always becomes the same frames.
    """

    @property
    def types(self) -> frozenset[str]:
        """The types of events that can become frames; the view receives no others."""

    @property
    def keepalive(self) -> RenderedFrame | None:
        """The frame that shows that a silent stream is alive; None for a comment of the transport."""

    def hello(self, now_ms: int, run_id: str | None = None) -> list[RenderedFrame]:
        """Return the frames that open a stream; there may be none.

        Args:
            now_ms: milliseconds of the epoch.
            run_id: given if the stream shows that run and ends with it.
        """

    def render(
        self, line: bytes, *, of_run: bool = False, is_repeat: bool = False
    ) -> list[RenderedFrame]:
        """Return the frames of an event, in order; at most ``FRAMES_MAX``, none if it has none.

        Args:
            line: the event as it is in the log.
            of_run: whether the stream is one of a single run.
            is_repeat: the event joins deltas of which the reader already has some.
        """
