"""``opencode serve``, with acts for a model (``protocol/runtimes/opencode.md``).

It keeps its sessions below ``XDG_DATA_HOME``, and there every request that it receives (``RECEIVED``).

Besides the usual acts: ``{"runs": [TOOL, ARGS]}`` a tool of its own that it does not ask about,
``{"leaves": [TOOL, ARGS]}`` one whose end it does not report, ``{"retry": true}`` its model call is
repeated, ``{"todos": [STEP, ...]}`` what it means to do, ``{"summary": TEXT}`` a message that it writes
for itself, ``{"whole": TEXT}`` a text that does not stream, ``{"elsewhere": TEXT}`` one of another
session, ``{"silent": true}`` no report of the calls that follow, ``{"refuse": TEXT}`` a text that it
does not take, ``{"answers": BYTES}`` how much longer its answers are, ``{"big": BYTES}`` a large event.

Its first argument may be JSON with how it differs from a usual one: ``lost`` (it does not find its
sessions again), ``mcp`` (the state in which its MCP servers are).
"""

from __future__ import annotations

import base64
import json
import os
import queue
import sys
import threading
import uuid
from collections.abc import Callable
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from tests.runtimes.programs.acts import Act, acts_of, die, flood_of, seen
from tests.runtimes.programs.mcp_client import Tools, Waiting

RECEIVED: Final = "received.ndjson"
VERSION: Final = "1.2.3"

_TOKENS: Final = {"input": 3, "output": 2, "reasoning": 1, "cache": {"read": 2, "write": 1}}
_COST: Final = 0.25


class Failed(Exception):
    """The model's server fails."""


class Stopped(Exception):
    """The turn is aborted, or ends because a question was answered without a reason."""


class Program:
    """The program, for one session."""

    def __init__(self, memory: Path, manner: dict[str, Any]) -> None:
        self._memory, self.manner = memory, manner
        memory.mkdir(parents=True, exist_ok=True)
        self.answer_bytes = 0
        self._id = ""
        self._rules: list[dict[str, str]] = []
        self._said: list[str] = []
        self._tools: Tools | None = None
        self._prompts: queue.Queue[dict[str, Any]] = queue.Queue()
        self._waiting = Waiting()
        self._listeners: list[queue.Queue[bytes]] = []
        self._busy = threading.Lock()
        self._results: list[str] = []
        self._message = ""
        self._has_text = False
        self._reports = True
        self._acts: dict[str, Callable[[Any], None]] = {
            "say": self._say,
            "think": lambda text: self._write("reasoning", text),
            "call": lambda pair: self._calls([pair]),
            "calls": self._calls,
            "again": lambda pair: self._calls([pair, pair], "call-same"),
            "own": self._own,
            "runs": self._runs,
            "leaves": lambda pair: self._begin_own(pair[0], pair[1], f"own-{uuid.uuid4().hex}"),
            "say_results": lambda _: self._say(" | ".join(self._results)),
            "hold": self._hold,
            "deaf": self._deaf,
            "die": self._die,
            "fail": self._fail,
            "unknown": self._unknown,
            "garbage": lambda count: self._raw(["{not json"] * count),
            "raw": self._raw,
            "flood": lambda count: self._write("text", *flood_of(count)),
            "early": lambda _: None,
            "retry": lambda _: self._status("retry", attempt=1, message="overloaded", next=0),
            "todos": self._todos,
            "summary": self._summary,
            "whole": self._whole,
            "elsewhere": self._elsewhere,
            "silent": self._be_silent,
            "answers": self._answers,
            "big": lambda count: self._emit("something.big", text="x" * count),
            "look": lambda path: self._say(seen(path)),
        }
        threading.Thread(target=self._work, daemon=True).start()

    # --- requests ----------------------------------------------------------------------------

    def received(self, method: str, path: str, body: Any) -> None:
        with (self._memory / RECEIVED).open("a") as file:
            file.write(json.dumps({"method": method, "path": path, "body": body}) + "\n")

    def listen(self) -> queue.Queue[bytes]:
        """Return the events from now on, as the bytes of a stream."""
        listener: queue.Queue[bytes] = queue.Queue()
        listener.put(b'data: {"type":"server.connected","properties":{}}\n\n')
        self._listeners.append(listener)
        return listener

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Return status and body of the answer to a request."""
        match [method, *path.strip("/").split("/")]:
            case ["GET", "global", "health"]:
                return 200, {"healthy": True, "version": VERSION}
            case ["GET", "config", "providers"]:
                return 200, {"providers": [{"id": "stub", "models": {"m": {}, "large/x": {}}}]}
            case ["POST", "mcp"]:
                return 200, self._add_tools(body)
            case ["POST", "session"]:
                return 200, self._open(uuid.uuid4().hex, body)
            case ["PATCH", "session", id_]:
                return self._resume(id_, body)
            case ["POST", "session", id_, "prompt_async"] if id_ == self._id:
                if (first := _acts(body)[:1]) and first[0][0] == "refuse":
                    self._fault("UnknownError", f"{first[0][1]}\n    at here")
                    return 204, None
                if not _is_early(body):
                    self._take_prompt(body)
                self._prompts.put(body)
                return 204, None
            case ["POST", "session", id_, "abort"] if id_ == self._id:
                self._waiting.stop(is_stopped=True)
                return 200, True
            case ["POST", "permission", id_, "reply"]:
                self._waiting.put(id_, body)
                return 200, True
        return 404, {"name": "NotFoundError", "data": {"message": f"Not found: {path}"}}

    def _add_tools(self, body: dict[str, Any]) -> dict[str, Any]:
        config = body["config"]
        self._tools = Tools(config["command"], config["environment"])
        state = self.manner.get("mcp", "connected")
        return {body["name"]: {"status": state, "error": "it is broken"}}

    def _open(self, id_: str, body: dict[str, Any]) -> dict[str, Any]:
        self._id, self._rules = id_, body["permission"]
        self._keep()
        return {"id": id_, "title": body.get("title", "")}

    def _resume(self, id_: str, body: dict[str, Any]) -> tuple[int, Any]:
        file = self._memory / id_
        if self.manner.get("lost") or not file.exists():
            return 404, {"name": "NotFoundError", "data": {"message": f"Session not found: {id_}"}}
        self._said = json.loads(file.read_text())
        return 200, self._open(id_, body)

    def _keep(self) -> None:
        (self._memory / self._id).write_text(json.dumps(self._said))

    # --- events ------------------------------------------------------------------------------

    def _emit_raw(self, data: bytes) -> None:
        for listener in self._listeners:
            listener.put(b"data: " + data + b"\n\n")

    def _emit(self, kind: str, **properties: Any) -> None:
        said = {"type": kind, "properties": {"sessionID": self._id, **properties}}
        self._emit_raw(json.dumps(said).encode())

    def _status(self, kind: str, **more: Any) -> None:
        self._emit("session.status", status={"type": kind, **more})

    def _part(self, kind: str, **more: Any) -> None:
        part = {"id": f"prt_{uuid.uuid4().hex}", "messageID": self._message, "type": kind, **more}
        self._emit("message.part.updated", part=part)

    def _begin_message(self, **more: Any) -> None:
        if not self._message:
            self._message, self._has_text = f"msg_{uuid.uuid4().hex}", False
            names = {"providerID": "stub", "modelID": "m"}
            info = {"id": self._message, "role": "assistant", **names, **more}
            self._emit("message.updated", info=info)
            self._part("step-start")

    def _end_message(self) -> None:
        if self._message:
            self._part("step-finish", reason="stop", tokens=_TOKENS, cost=_COST)
            self._message = ""

    def _write(self, kind: str, *deltas: str) -> None:
        self._begin_message()
        id_ = f"prt_{uuid.uuid4().hex}"
        self._part(kind, id=id_, text="", time={"start": 1})
        for delta in deltas:
            self._emit("message.part.delta", partID=id_, field="text", delta=delta)
        self._part(kind, id=id_, text="".join(deltas), time={"start": 1, "end": 2})

    def _say(self, text: str) -> None:
        """Say it, in a model call of its own after another text."""
        if self._has_text:
            self._end_message()
        self._write("text", text)
        self._has_text = True

    # --- turns -------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            prompt = self._prompts.get()
            self._waiting.stop(is_stopped=False)
            self._results, self._reports = [], True
            self._status("busy")
            try:
                self._follow(prompt)
                while not self._prompts.empty():
                    self._follow(self._prompts.get())
            except Failed as failed:
                self._fault("APIError", str(failed))
            except Stopped:
                self._fault("MessageAbortedError", "Aborted")
            self._end_message()
            self._status("idle")
            self._emit("session.idle")

    def _fault(self, name: str, message: str) -> None:
        self._emit("session.error", error={"name": name, "data": {"message": message}})

    def _follow(self, prompt: dict[str, Any]) -> None:
        if _is_early(prompt):
            self._write("text", "early ")
            self._take_prompt(prompt)
        for name, what in _acts(prompt):
            if self._waiting.is_stopped:
                raise Stopped
            self._acts[name](what)
        self._end_message()

    def _take_prompt(self, prompt: dict[str, Any]) -> None:
        """Keep the user's message, and report it."""
        message = f"msg_{uuid.uuid4().hex}"
        self._emit("message.updated", info={"id": message, "role": "user"})
        for part in prompt["parts"]:
            reported = {"id": f"prt_{uuid.uuid4().hex}", **part, "messageID": message}
            self._emit("message.part.updated", part=reported)
            self._said.append(part.get("text", "picture"))
        self._keep()

    # --- what it calls -----------------------------------------------------------------------

    def _calls(self, pairs: list[tuple[str, Any]], id_: str = "") -> None:
        results = [""] * len(pairs)

        def call(place: int, tool: str, args: Any) -> None:
            results[place] = self._call(tool.replace(".", "_"), args, id_)

        self._begin_message()
        threads = [
            threading.Thread(target=call, args=[place, *pair]) for place, pair in enumerate(pairs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._results += results

    def _call(self, name: str, args: Any, id_: str = "") -> str:
        self._begin_message()
        tool, call_id = f"nousd_{name}", id_ or f"call-{uuid.uuid4().hex}"
        assert self._action(tool) == "allow"
        if self._reports:
            self._report(tool, call_id, status="pending", input={})
            self._report(tool, call_id, status="running", input=args)
        assert self._tools is not None
        assert name in self._tools.names, self._tools.names
        text = self._tools.call(name, args)
        if self._reports:
            self._report(tool, call_id, status="completed", input=args, output=text)
        return text

    def _report(self, tool: str, call_id: str, **state: Any) -> None:
        self._part("tool", tool=tool, callID=call_id, state=state)

    def _action(self, tool: str) -> str:
        """Return what the permissions of the session say about a tool."""
        fits = [rule for rule in self._rules if fnmatchcase(tool, rule["permission"])]
        return fits[-1]["action"] if fits else "ask"

    def _own(self, pair: tuple[str, Any]) -> None:
        """Call a tool of its own; the question about it comes before its report."""
        tool, args = pair
        self._begin_message()
        call_id = f"own-{uuid.uuid4().hex}"
        state = {"status": "running", "input": args}
        if self._action(tool) == "deny":
            self._report(tool, call_id, **state)
            self._refuse(tool, call_id, args, f"Model tried to call unavailable tool '{tool}'.")
            return
        id_ = f"per_{uuid.uuid4().hex}"
        place = {"messageID": self._message, "callID": call_id}
        self._emit(
            "permission.asked", id=id_, permission=tool, patterns=["*"], metadata={}, tool=place
        )
        self._report(tool, call_id, **state)
        reply = self._waiting.get(id_)
        if reply["reply"] == "once":
            self._report(tool, call_id, status="completed", input=args, output="did it")
            self._results.append("allowed: did it")
            return
        self._refuse(tool, call_id, args, reply.get("message", "rejected"))
        if not reply.get("message"):
            raise Stopped

    def _runs(self, pair: tuple[str, Any]) -> None:
        """Call a tool of its own that it does not ask about."""
        tool, args = pair
        call_id = f"own-{uuid.uuid4().hex}"
        self._begin_own(tool, args, call_id)
        self._report(tool, call_id, status="completed", input=args, output=f"{tool} gave this")

    def _begin_own(self, tool: str, args: Any, call_id: str) -> None:
        self._begin_message()
        self._report(tool, call_id, status="running", input=args)

    def _refuse(self, tool: str, call_id: str, args: Any, why: str) -> None:
        self._report(tool, call_id, status="error", input=args, error=why)
        self._results.append(why)

    # --- how it goes on ----------------------------------------------------------------------

    def _hold(self, _: bool) -> None:
        """Think on, and call a tool now and then, until there is a text or the turn is aborted."""
        while self._prompts.empty():
            if self._waiting.wait_stop(0.2):
                raise Stopped
            self._results.append(self._call("workspace_read", {"path": "."}))

    def _deaf(self, _: bool) -> None:
        threading.Event().wait()

    def _die(self, code: int) -> None:
        """End at once, when all that was said is on its way."""
        for listener in self._listeners:
            listener.join()
        die(code)

    def _fail(self, words: str) -> None:
        raise Failed(words)

    def _unknown(self, count: int) -> None:
        for number in range(count):
            self._emit("something.new", number=number)

    def _raw(self, lines: list[str]) -> None:
        for line in lines:
            self._emit_raw(line.encode("latin-1"))

    def _todos(self, steps: list[str]) -> None:
        todos = [{"content": step, "status": "pending", "priority": "high"} for step in steps]
        self._emit("todo.updated", todos=todos)

    def _summary(self, text: str) -> None:
        self._end_message()
        self._begin_message(summary=True)
        self._write("text", text)
        self._end_message()

    def _whole(self, text: str) -> None:
        self._begin_message()
        self._part("text", text=text, time={"start": 1, "end": 2})

    def _elsewhere(self, text: str) -> None:
        id_, self._id = self._id, "ses_of_someone_else"
        self._write("text", text)
        self._end_message()
        self._emit("session.idle")
        self._id = id_

    def _be_silent(self, _: bool) -> None:
        self._reports = False

    def _answers(self, count: int) -> None:
        self.answer_bytes = count


def _acts(prompt: dict[str, Any]) -> list[Act]:
    return acts_of([part["text"] for part in prompt["parts"] if part["type"] == "text"][-1])


def _is_early(prompt: dict[str, Any]) -> bool:
    """Return whether it says something before it reports the user's text."""
    return _acts(prompt)[:1] == [("early", True)]


class Handler(BaseHTTPRequestHandler):
    """Answers those who know the password."""

    protocol_version = "HTTP/1.1"
    program: Program
    password: str

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def _serve(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        known = base64.b64encode(f"opencode:{self.password}".encode()).decode()
        if self.headers.get("Authorization") != f"Basic {known}":
            self._send(401, {"message": "Unauthorized"})
        elif self.path == "/event":
            self._stream()
        else:
            body = json.loads(data) if data else None
            self.program.received(self.command, self.path, body)
            self._send(*self.program.answer(self.command, self.path, body))

    def _send(self, status: int, body: Any) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        data += b" " * self.program.answer_bytes
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if status != 204:
            self.wfile.write(data)

    def _stream(self) -> None:
        events = self.program.listen()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        while True:
            self.wfile.write(events.get())
            self.wfile.flush()
            events.task_done()


def main() -> None:
    """Serve until the program is ended."""
    manner = json.loads(sys.argv[1]) if sys.argv[1].startswith("{") else {}
    Handler.program = Program(Path(os.environ["XDG_DATA_HOME"]), manner)
    Handler.password = os.environ["OPENCODE_SERVER_PASSWORD"]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    sys.stdout.write(f"opencode server listening on http://127.0.0.1:{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
