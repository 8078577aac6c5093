"""Converts the events of a session to the updates that an editor receives.

An update replaces the previous content of its tool call, so each sends the end of the output, at a
limited rate: ``flush`` returns the updates that are due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from nousd.acp_server.tool_calls import describe_call, is_changing, text_content

Payload = Mapping[str, Any]
Update = dict[str, Any]

FLUSH_SECONDS: Final = 0.2
"""How long a tool's output is held back, so that it is not sent again for each line."""

_OUTPUT_CHARS_MAX: Final = 16 * 1024
"""Maximum characters of a running call's output that are shown, from its end."""

_STOP_WARNING: Final = "provider_aborted"
"""The warning that a model call was stopped on request."""

_MODES: Final = {
    "ask": ("Ask", "Asks before everything but what touches nothing."),
    "auto": (
        "Auto",
        "Reads, writes and runs sandboxed commands in the workspace; asks for the rest.",
    ),
    "yolo": ("Yolo", "Asks for nothing."),
}


def modes(current: str) -> dict[str, Any]:
    """Return the available modes and the current one."""
    available = [
        {"id": id, "name": name, "description": text} for id, (name, text) in _MODES.items()
    ]
    return {"currentModeId": current, "availableModes": available}


def chunk(kind: str, text: str, message_id: str = "") -> Update:
    """Return an update of ``kind`` with a piece of text."""
    named = {"messageId": message_id} if message_id else {}
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}, **named}


def _whole_or_cut(text: str, payload: Payload) -> str:
    """Return a text; mark it if it is only the beginning of a longer one."""
    return f"{text}\n... (of {payload['text_bytes']} bytes)" if "text_ref" in payload else text


def plan(todos: Iterable[Payload]) -> Update:
    """Return a todo list as a plan, which cannot show cancelled items."""
    entries = [
        {
            "content": todo["content"],
            "priority": todo.get("priority", "medium"),
            "status": todo["status"],
        }
        for todo in todos
        if todo["status"] != "cancelled"
    ]
    return {"sessionUpdate": "plan", "entries": entries}


class _OpenCall:
    """A tool call that has not ended."""

    def __init__(self) -> None:
        self.output = ""
        self.is_due = False

    def add(self, delta: str) -> None:
        self.output = (self.output + delta)[-_OUTPUT_CHARS_MAX:]
        self.is_due = True


class Updates:
    """Produces an editor's updates about one session.

    Args:
        folder: the session's workspace.
        is_own: returns whether all inputs are prompts of the editor, which shows them itself.
        has_notices: whether the editor shows notices.
        cost_usd: the session's cost so far.
    """

    def __init__(
        self,
        folder: str,
        is_own: Callable[[Iterable[str]], bool],
        *,
        has_notices: bool,
        cost_usd: float = 0.0,
    ) -> None:
        self._folder = folder
        self._is_own = is_own
        self._has_notices = has_notices
        self._cost_usd = cost_usd
        self._window = 0
        self._calls: dict[str, _OpenCall] = {}
        self._open_message_id = ""
        """The id of the message whose end need not repeat the text."""
        self.replayed: set[str] = set()
        """Ids of the messages and tool calls that were sent with the transcript."""

    @property
    def is_due(self) -> bool:
        """Whether there is something to flush."""
        return any(call.is_due for call in self._calls.values())

    def flush(self) -> list[Update]:
        """Return updates with the output that was held back."""
        due = [(id, call) for id, call in self._calls.items() if call.is_due]
        for _, call in due:
            call.is_due = False
        return [_of_call(id, content=text_content(call.output)) for id, call in due]

    def begin_message(self, message_id: str, text: str) -> list[Update]:
        """Begin a message that is being streamed; return an update with its text so far."""
        self._open_message_id = message_id
        return [chunk("agent_message_chunk", text, message_id)] if text else []

    def begin_calls(self, ids: Iterable[str]) -> None:
        """Register the ids of calls that were sent and have not ended."""
        self._calls.update((id, _OpenCall()) for id in ids)

    def take(self, type_: str, payload: Payload) -> list[Update]:
        """Return the updates for an event of the session."""
        if (
            payload.get("message_id") in self.replayed
            or payload.get("tool_call_id") in self.replayed
        ):
            return []
        if type_.startswith("tool_"):
            return self._of_tool(type_, payload)
        if type_.startswith("message_"):
            return self._of_message(type_, payload)
        match type_:
            case "reasoning_update":
                return [chunk("agent_thought_chunk", payload["delta"], payload["message_id"])]
            case "todo_updated":
                return [plan(payload["todos"])]
            case "session_updated":
                return _of_session(payload)
            case "model_input":
                self._window = payload.get("context_window", 0)
            case "usage_reported":
                return self._usage(payload)
            case "warning" | "error" if self._has_notices and payload["code"] != _STOP_WARNING:
                return [_notice(type_, payload)]
        return []

    # --- messages ------------------------------------------------------------------------------

    def _of_message(self, type_: str, payload: Payload) -> list[Update]:
        message_id = payload["message_id"]
        match type_:
            case "message_start" if payload["role"] == "user":
                self._open_message_id = message_id  # its end repeats the text
                if not self._is_own(payload.get("input_ids", ("",))):
                    text = _whole_or_cut(payload.get("text", ""), payload)
                    return [chunk("user_message_chunk", text, message_id)]
            case "message_update":
                self._open_message_id = message_id
                return [chunk("agent_message_chunk", payload["delta"], message_id)]
            case "message_end" if self._open_message_id != message_id and payload["text"]:
                return [chunk("agent_message_chunk", payload["text"], message_id)]
        return []

    # --- tool calls ----------------------------------------------------------------------------

    def _of_tool(self, type_: str, payload: Payload) -> list[Update]:
        id = payload["tool_call_id"]
        match type_:
            case "tool_call_requested" if payload["attempt"] > 1:
                return [self._begin(payload, kind="tool_call_update")]
            case "tool_call_requested" | "tool_execution_start" if id not in self._calls:
                return [self._begin(payload, kind="tool_call")]
            case "tool_call_started":
                return [_of_call(id, status="in_progress")]
            case "tool_execution_update" | "tool_call_output":
                self._calls.setdefault(id, _OpenCall()).add(payload["delta"])
            case "tool_execution_end":
                return [self._end(payload, payload["result"], is_error=payload["is_error"])]
            case "tool_call_completed" if "run_id" not in payload:
                return [self._end(payload, payload.get("result", ""), is_error=payload["is_error"])]
            case "tool_call_denied" if "run_id" not in payload:
                return [self._end(payload, payload["reason"], is_error=True)]
        return []

    def _begin(self, payload: Payload, *, kind: str) -> Update:
        id, name = payload["tool_call_id"], payload["tool_name"]
        self._calls[id] = _OpenCall()
        call = describe_call(name, payload["args"], self._folder)
        return {"sessionUpdate": kind, "toolCallId": id, "status": "pending", **call}

    def _end(self, payload: Payload, result: str, *, is_error: bool) -> Update:
        id = payload["tool_call_id"]
        self._calls.pop(id, None)
        shown = _whole_or_cut(result, payload)
        return build_call_end(id, payload["tool_name"], shown, is_error=is_error)

    # --- usage ---------------------------------------------------------------------------------

    def _usage(self, payload: Payload) -> list[Update]:
        self._cost_usd += payload.get("cost_usd", 0.0)
        usage = payload.get("usage")
        if usage is None or payload.get("purpose", "answer") != "answer" or not self._window:
            return []
        cost = {"cost": {"amount": self._cost_usd, "currency": "USD"}} if self._cost_usd else {}
        size = {"used": usage["total"], "size": self._window}
        return [{"sessionUpdate": "usage_update", **size, **cost}]


def build_call_end(id: str, tool_name: str, result: str, *, is_error: bool) -> Update:
    """Return the update that ends a call. A diff of the call stays visible."""
    status = "failed" if is_error else "completed"
    is_shown = is_changing(tool_name) and not is_error
    content = {} if is_shown else {"content": text_content(result)}
    return _of_call(id, status=status, **content)


def _of_call(id: str, **keys: Any) -> Update:
    return {"sessionUpdate": "tool_call_update", "toolCallId": id, **keys}


def _of_session(payload: Payload) -> list[Update]:
    found: list[Update] = []
    if "permission_mode" in payload:
        mode = {"currentModeId": payload["permission_mode"]}
        found.append({"sessionUpdate": "current_mode_update", **mode})
    title = payload.get("name") or payload.get("title")
    if title:
        found.append({"sessionUpdate": "session_info_update", "title": title})
    return found


def _notice(severity: str, payload: Payload) -> Update:
    parts = (payload.get("cause", ""), payload.get("hint", ""))
    more = "; ".join(part for part in parts if part)
    return notice(severity, payload["message"] or payload["code"], more)


def notice(severity: str, title: str, more: str = "") -> Update:
    """Return a notice, which does not come from the model."""
    described = {"description": more} if more else {}
    return {"sessionUpdate": "notice", "severity": severity, "title": title, **described}
