"""Claude Code as its stream of JSON shows it, with acts for a model (``protocol/runtimes/claude.md``).

Its sessions are files in ``CLAUDE_CONFIG_DIR``, else in ``~/.claude``: what was said in each.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any

from tests.runtimes.programs.acts import (
    acts_of,
    die,
    flood_of,
    memory_of,
    seen,
    send,
    send_garbage,
    send_raw,
    uncovered,
)

_MODEL = "claude-test-1"


class Stopped(Exception):
    """The turn was ended: by a hook, or by the user."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Failed(Exception):
    """The model's server failed."""


class Program:
    """The program, for one session."""

    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments
        self._memory = memory_of("CLAUDE_CONFIG_DIR", ".claude")
        resumed = self._argument("--resume")
        self._id = resumed or str(uuid.uuid4())
        self._said: list[str] = []
        if resumed:
            self._said = json.loads((self._memory / resumed).read_text())
        self._texts: queue.Queue[dict[str, Any]] = queue.Queue()
        self._answers: dict[str, dict[str, Any]] = {}
        self._answered = threading.Condition()
        self._stopped = threading.Event()
        self._tools: list[str] = []
        self._results: list[str] = []
        self._acts: dict[str, Callable[[Any], None]] = {
            "say": self._say,
            "think": lambda text: self._message(("thinking", text)),
            "call": lambda pair: self._calls([pair]),
            "calls": self._calls,
            "again": lambda pair: self._calls([pair, pair], "toolu_same"),
            "own": lambda pair: self._own(pair, asks=True),
            "runs": lambda pair: self._own(pair, asks=False),
            "leaves": self._leaves,
            "say_results": lambda _: self._say(" | ".join(self._results)),
            "hold": self._hold,
            "deaf": _deaf,
            "die": die,
            "fail": self._fail,
            "unknown": self._unknown,
            "garbage": send_garbage,
            "raw": send_raw,
            "flood": lambda count: self._say(*flood_of(count)),
            "early": lambda _: None,
            "look": lambda path: self._say(seen(path)),
            "uncover": lambda path: self._say(uncovered(path)),
        }

    def _argument(self, name: str) -> str:
        if name not in self._arguments:
            return ""
        return self._arguments[self._arguments.index(name) + 1]

    def run(self) -> None:
        """Serve the session until the input ends."""
        threading.Thread(target=self._read, daemon=True).start()
        while True:
            self._turn(self._texts.get())

    def _read(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            match message["type"]:
                case "user":
                    self._lifecycle(message, "queued")
                    self._texts.put(message)
                case "control_response":
                    with self._answered:
                        response = message["response"]
                        self._answers[response["request_id"]] = response
                        self._answered.notify_all()
                case "control_request":
                    threading.Thread(target=self._asked, args=[message], daemon=True).start()
        die(0)

    def _asked(self, message: dict[str, Any]) -> None:
        result: dict[str, Any] = {}
        if message["request"]["subtype"] == "initialize":
            result["models"] = [{"value": "default"}, {"value": "large"}]
            self._mcp("initialize", {"protocolVersion": "2025-11-25"})
            listed = self._mcp("tools/list", {})
            self._tools = [f"mcp__nousd__{tool['name']}" for tool in listed["tools"]]
        elif message["request"]["subtype"] == "interrupt":
            self._stopped.set()
            with self._answered:
                self._answered.notify_all()
        answer = {"subtype": "success", "request_id": message["request_id"], "response": result}
        send({"type": "control_response", "response": answer})

    def _ask(self, **request: Any) -> dict[str, Any]:
        id_ = str(uuid.uuid4())
        send({"type": "control_request", "request_id": id_, "request": request})
        with self._answered:
            self._answered.wait_for(lambda: id_ in self._answers or self._stopped.is_set())
            if id_ not in self._answers:
                send({"type": "control_cancel_request", "request_id": id_})
                raise Stopped("aborted")
            answered: dict[str, Any] = self._answers[id_]["response"]
            return answered

    def _mcp(self, method: str, params: Any) -> dict[str, Any]:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answered = self._ask(subtype="mcp_message", server_name="nousd", message=message)
        result: dict[str, Any] = answered["mcp_response"]["result"]
        return result

    def _lifecycle(self, text: dict[str, Any], state: str) -> None:
        send({"type": "command_lifecycle", "command_uuid": text["uuid"], "state": state})

    def _turn(self, text: dict[str, Any]) -> None:
        self._stopped.clear()
        self._results = []
        said = [part["text"] for part in text["message"]["content"] if part["type"] == "text"]
        self._said += said
        self._memory.mkdir(parents=True, exist_ok=True)
        (self._memory / self._id).write_text(json.dumps(self._said))
        acts = acts_of(said[-1])
        if ("early", True) not in acts:
            self._lifecycle(text, "started")
        send(
            {
                "type": "system",
                "subtype": "init",
                "session_id": self._id,
                "tools": self._tools,
                "model": _MODEL,
                "claude_code_version": "2.1.332",
            }
        )
        result: dict[str, Any] = {"subtype": "success", "is_error": False}
        try:
            for name, what in acts:
                if self._stopped.is_set():
                    raise Stopped("aborted")
                self._acts[name](what)
        except Stopped as stopped:
            is_error = stopped.reason == "aborted"
            subtype = "error_during_execution" if is_error else "success"
            result = {"subtype": subtype, "is_error": is_error, "terminal_reason": stopped.reason}
        except Failed as failed:
            result = {"subtype": "success", "is_error": True, "result": str(failed)}
        send({"type": "result", "session_id": self._id, "total_cost_usd": 0.25, **result})
        self._lifecycle(text, "completed")

    def _event(self, type_: str, **more: Any) -> None:
        event = {"type": type_, **more}
        send({"type": "stream_event", "event": event, "parent_tool_use_id": None})

    def _message(self, *parts: tuple[str, str], stop_reason: str = "end_turn") -> None:
        usage = {"input_tokens": 3, "output_tokens": 1}
        message = {"id": f"msg_{uuid.uuid4().hex}", "model": _MODEL, "usage": usage}
        self._event("message_start", message=message)
        for kind, text in parts:
            delta = {"type": f"{kind}_delta", kind: text}
            self._event("content_block_delta", index=0, delta=delta)
        content = [{"type": kind, kind: text} for kind, text in parts]
        whole = {**message, "content": content}
        send({"type": "assistant", "message": whole, "parent_tool_use_id": None})
        self._event("message_delta", delta={"stop_reason": stop_reason}, usage={"output_tokens": 2})
        self._event("message_stop")

    def _say(self, *deltas: str) -> None:
        self._message(*[("text", delta) for delta in deltas])

    def _hook(self, id_: str, tool: str, args: Any) -> str | None:
        """Return why a call must not be made; "" if it may, None if that is not decided."""
        asked = {"tool_name": tool, "tool_input": args, "tool_use_id": id_}
        answer = self._ask(subtype="hook_callback", callback_id="before", input=asked)
        if answer.get("continue") is False:
            raise Stopped("hook_stopped")
        if "hookSpecificOutput" not in answer:
            return None
        said = answer["hookSpecificOutput"]
        return said["permissionDecisionReason"] if said["permissionDecision"] == "deny" else ""

    def _calls(self, pairs: list[tuple[str, Any]], id_: str = "") -> None:
        self._message(stop_reason="tool_use")
        for tool, args in pairs:
            used = id_ or f"toolu_{uuid.uuid4().hex}"
            name = tool.replace(".", "_")
            against = self._hook(used, f"mcp__nousd__{name}", args)
            if against:
                self._results.append(against)
                continue
            params = {"name": name, "arguments": args, "_meta": {"claudecode/toolUseId": used}}
            content = self._mcp("tools/call", params)["content"]
            self._results.append(content[0]["text"])

    def _own(self, pair: tuple[str, Any], *, asks: bool) -> None:
        tool, args = pair
        used = f"toolu_{uuid.uuid4().hex}"
        against = self._hook(used, tool, args)
        if against is None and asks:
            asked = {"tool_name": tool, "input": args, "tool_use_id": used}
            against = self._ask(subtype="can_use_tool", **asked).get("message", "")
        self._results.append(against or "allowed: did it")
        if not against:
            block = {"type": "tool_result", "tool_use_id": used, "content": "did it"}
            send({"type": "user", "message": {"role": "user", "content": [block]}})

    def _leaves(self, pair: tuple[str, Any]) -> None:
        self._hook(f"toolu_{uuid.uuid4().hex}", *pair)

    def _hold(self, _: bool) -> None:
        """Think on, and ask for a tool now and then, until there is a reason to stop."""
        if not self._stopped.wait(0.3):
            self._hook(f"toolu_{uuid.uuid4().hex}", "mcp__nousd__workspace_read", {"path": "."})
            self._hold(_)
        raise Stopped("aborted")

    def _fail(self, words: str) -> None:
        raise Failed(words)

    def _unknown(self, count: int) -> None:
        for number in range(count):
            send({"type": "something_new", "number": number})


def _deaf(_: bool) -> None:
    threading.Event().wait()


Program(sys.argv[1:]).run()
