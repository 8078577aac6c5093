"""A minimal second view: the lines of the log under their event types."""

from __future__ import annotations

from nousd.views.event_view import EventView, RenderedFrame
from nousd.wire.codec.envelope import decode_event


class _ToyView:
    """A view with no frame for the end of a run, and two for its start."""

    types = frozenset({"agent_start", "message_update", "reasoning_update", "session_created"})
    keepalive = RenderedFrame(b"{}", "ping")

    def hello(self, now_ms: int, run_id: str | None = None) -> list[RenderedFrame]:
        return []

    def render(
        self, line: bytes, *, of_run: bool = False, is_repeat: bool = False
    ) -> list[RenderedFrame]:
        type_ = decode_event(line).type
        frame = RenderedFrame(line.rstrip(b"\n"), type_)
        return [frame, RenderedFrame(b"{}", "started")] if type_ == "agent_start" else [frame]


TOY: EventView = _ToyView()
