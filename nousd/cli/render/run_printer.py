"""The events of runs as text for people, printed while they arrive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nousd.cli.output import say, shown, snippet
from nousd.cli.render.request_lines import waiting_lines
from nousd.client.answers import ReceivedEvent


class RunPrinter:
    """Prints runs for a person: answers on standard output, the rest on standard error.

    Each remark begins on a line of its own, also in the middle of an answer.

    Args:
        tells_requests: print what waits for the user, and how to answer it from another terminal.
    """

    def __init__(self, *, tells_requests: bool = False) -> None:
        self._tells_requests = tells_requests
        self._in_line = False

    def show(self, event: ReceivedEvent) -> None:
        """Print one event."""
        payload = event.payload
        match event.type:
            case "message_update":
                print(shown(payload["delta"]), end="", flush=True)
                self._in_line = not payload["delta"].endswith("\n")
            case "message_end":
                self._end_line()
            case "tool_execution_start":
                self._remark(f"[{payload['tool_name']}] {snippet(str(payload.get('args', '')))}")
            case "tool_execution_end":
                outcome = "failed" if payload.get("is_error") else "done"
                result = snippet(payload.get("result", ""))
                self._remark(f"[{payload['tool_name']}] {outcome}: {result}")
            case "status" if self._tells_requests:
                for line in waiting_lines(payload["message"]):
                    self._remark(line)
            case "warning":
                self._remark(f"warning: {payload['code']}: {payload['message']}")
                self._hint(payload)
            case "error":
                cause = f" ({payload['cause']})" if payload["cause"] else ""
                self._remark(f"error: {payload['code']}: {payload['message']}{cause}")
                self._hint(payload)
            case "agent_end" if payload.get("status") != "completed":
                self._remark(f"the run ended: {payload.get('status')}")

    def _hint(self, payload: Mapping[str, Any]) -> None:
        if hint := payload.get("hint"):
            self._remark(hint)

    def _remark(self, text: str) -> None:
        self._end_line()
        say(text)

    def _end_line(self) -> None:
        if self._in_line:
            print(flush=True)
            self._in_line = False
