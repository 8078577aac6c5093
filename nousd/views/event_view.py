"""The interface of a view, which renders the event stream in the vocabulary of another system.

Numbering frames, positions in a stream and reading the log are left to the stream, and are the same for
every view. A new view is a file that implements ``EventView``, and a row of the bridge's route table
that names it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class RenderedFrame(NamedTuple):
    """One frame. ``data`` is a single line without its LF. ``type`` is the event type that the stream
    sends beside the data, if the other system expects it there.
    """

    data: bytes
    type: str | None = None


class EventView(Protocol):
    """Renders each event of the log by itself, so that a stream can begin anywhere.

    A view is pure and keeps no state: the same line always becomes the same frames.
    """

    @property
    def types(self) -> frozenset[str]:
        """The types of events that can become frames; the view receives no others."""

    @property
    def keepalive(self) -> RenderedFrame | None:
        """The frame that is sent as a keep-alive; None for a comment of the transport."""

    def hello(self, now_ms: int, run_id: str | None = None) -> list[RenderedFrame]:
        """Return the frames that open a stream; possibly none.

        Args:
            now_ms: the time, in milliseconds since the epoch.
            run_id: the run, if the stream shows only one run and ends with it.
        """

    def render(
        self, line: bytes, *, of_run: bool = False, is_repeat: bool = False
    ) -> list[RenderedFrame]:
        """Return the frames of an event, in order; at most ``FRAMES_MAX``, possibly none.

        Args:
            line: the event as it is in the log.
            of_run: whether the stream shows a single run.
            is_repeat: whether the event joins deltas some of which the reader already has.
        """
