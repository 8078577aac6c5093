"""A program of the Agent Client Protocol, with acts for a model (``protocol/runtimes/acp.md``).

It keeps its sessions in the folder that its first argument names, and there every message that it
receives, so that a published schema can judge them (``RECEIVED``). Its second argument is JSON with how
it differs from a usual one: ``version``, ``auth``, ``loads``, ``resumes``, ``images``, ``models``,
``modes``, ``lost`` (it does not find its sessions again).

Besides the usual acts: ``{"disguised": [TOOL, COMMAND]}`` a command that it calls like a tool of ours,
``{"fetches": true}`` files and terminals of the client, ``{"stops": REASON}`` the end of its turn,
``{"costs": USD}`` in all, ``{"plans": [STEP, ...]}``, ``{"picture": true}`` says an image.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.runtimes.programs.acts import acts_of, die, flood_of, seen, send, send_garbage, send_raw
from tests.runtimes.programs.mcp_client import Tools, Waiting

RECEIVED = "received.ndjson"

_OPTIONS = [
    {"optionId": "always", "kind": "allow_always", "name": "Always"},
    {"optionId": "once", "kind": "allow_once", "name": "Once"},
    {"optionId": "no", "kind": "reject_once", "name": "No"},
]


class Refused(Exception):
    """The answer to a request is an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Program:
    """The program, for one session."""

    def __init__(self, memory: Path, manner: dict[str, Any]) -> None:
        self._memory, self._manner = memory, manner
        self._memory.mkdir(parents=True, exist_ok=True)
        self._id = ""
        self._said: list[str] = []
        self._tools: Tools | None = None
        self._prompts: queue.Queue[dict[str, Any]] = queue.Queue()
        self._waiting = Waiting()
        self._results: list[str] = []
        self._stop_reason = ""
        self._acts: dict[str, Callable[[Any], None]] = {
            "say": self._say,
            "think": lambda text: self._update("agent_thought_chunk", content=_text(text)),
            "call": lambda pair: self._calls([pair]),
            "calls": self._calls,
            "again": lambda pair: self._calls([pair, pair], "call-same"),
            "own": self._own,
            "say_results": lambda _: self._say(" | ".join(self._results)),
            "look": lambda path: self._say(seen(path)),
            "hold": self._hold,
            "deaf": _deaf,
            "die": die,
            "fail": _fail,
            "unknown": self._unknown,
            "garbage": send_garbage,
            "raw": send_raw,
            "flood": lambda count: self._say(*flood_of(count)),
            "early": lambda _: None,
            "runs": self._runs,
            "leaves": self._leaves,
            "disguised": self._disguised,
            "fetches": self._fetches,
            "stops": self._stops,
            "costs": self._costs,
            "plans": self._plans,
            "picture": self._picture,
        }

    def run(self) -> None:
        """Serve the client until the input ends."""
        threading.Thread(target=self._work, daemon=True).start()
        with (self._memory / RECEIVED).open("a") as received:
            for line in sys.stdin:
                received.write(line)
                received.flush()
                self._take(json.loads(line))
        die(0)

    def _take(self, message: dict[str, Any]) -> None:
        match message.get("method"):
            case None:
                self._waiting.put(message["id"], message)
            case "session/cancel":
                self._waiting.stop(is_stopped=True)
            case "session/prompt":
                self._prompts.put(message)
            case method:
                threading.Thread(target=self._answer, args=[method, message], daemon=True).start()

    def _answer(self, method: str, message: dict[str, Any]) -> None:
        answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "initialize": self._initialize,
            "session/new": self._new,
            "session/load": self._load,
            "session/resume": self._load,
            "session/set_mode": lambda _: {},
            "session/set_model": lambda _: {},
            "session/set_config_option": lambda _: {"configOptions": []},
        }
        try:
            answer = {"result": answers[method](message["params"])}
        except Refused as refused:
            answer = {"error": {"code": refused.code, "message": refused.message}}
        send({"jsonrpc": "2.0", "id": message["id"], **answer})

    # --- its sessions ------------------------------------------------------------------------

    def _initialize(self, _: dict[str, Any]) -> dict[str, Any]:
        return {
            "protocolVersion": self._manner.get("version", 1),
            "agentCapabilities": {
                "loadSession": self._manner.get("loads", True),
                "promptCapabilities": {"image": self._manner.get("images", True)},
                "sessionCapabilities": {"resume": {}} if self._manner.get("resumes") else {},
            },
            "agentInfo": {"name": "fake", "version": "1.2.3"},
            "authMethods": [
                {"id": "key", "name": "A key", "description": "Run `fake login` in a terminal"}
            ],
        }

    def _new(self, params: dict[str, Any]) -> dict[str, Any]:
        if self._manner.get("auth"):
            raise Refused(-32000, "Authentication required")
        self._id = uuid.uuid4().hex
        return {"sessionId": self._id, **self._opened(params)}

    def _load(self, params: dict[str, Any]) -> dict[str, Any]:
        file = self._memory / params["sessionId"]
        if self._manner.get("lost") or not file.exists():
            raise Refused(-32002, "Session not found")
        self._id = params["sessionId"]
        self._said = json.loads(file.read_text())
        if not self._manner.get("resumes"):
            for text in self._said:
                self._update("user_message_chunk", content=_text(text))
                self._update("agent_message_chunk", content=_text("said before"))
        return self._opened(params)

    def _opened(self, params: dict[str, Any]) -> dict[str, Any]:
        (server,) = params["mcpServers"]
        variables = {each["name"]: each["value"] for each in server["env"]}
        self._tools = Tools([server["command"], *server["args"]], variables)
        opened: dict[str, Any] = {}
        if modes := self._manner.get("modes"):
            offered = [{"id": mode, "name": mode} for mode in modes]
            opened["modes"] = {"currentModeId": modes[0], "availableModes": offered}
        if models := self._manner.get("models"):
            options = [{"value": model, "name": model} for model in models]
            kind = {"type": "select", "currentValue": models[0], "options": options}
            opened["configOptions"] = [
                {"id": "the-model", "name": "Model", "category": "model", **kind}
            ]
        return opened

    # --- its turns ---------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            self._turn(self._prompts.get())

    def _turn(self, message: dict[str, Any]) -> None:
        self._waiting.stop(is_stopped=False)
        self._results, self._stop_reason = [], "end_turn"
        prompt = message["params"]["prompt"]
        texts = [part["text"] for part in prompt if part["type"] == "text"]
        self._said += texts
        (self._memory / self._id).write_text(json.dumps(self._said))
        try:
            for name, what in acts_of(texts[-1]):
                if not self._waiting.is_stopped:
                    self._acts[name](what)
        except Refused as refused:
            error = {"code": refused.code, "message": refused.message}
            send({"jsonrpc": "2.0", "id": message["id"], "error": error})
            return
        reason = "cancelled" if self._waiting.is_stopped else self._stop_reason
        tokens = {"inputTokens": 3, "outputTokens": 2, "totalTokens": 7, "cachedReadTokens": 2}
        result = {"stopReason": reason, "usage": tokens}
        send({"jsonrpc": "2.0", "id": message["id"], "result": result})

    def _update(self, kind_of_update: str, /, **more: Any) -> None:
        update = {"sessionUpdate": kind_of_update, **more}
        params = {"sessionId": self._id, "update": update}
        send({"jsonrpc": "2.0", "method": "session/update", "params": params})

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = f"ask-{uuid.uuid4().hex}"
        params = {"sessionId": self._id, **params}
        send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return self._waiting.get(number)

    def _say(self, *deltas: str) -> None:
        id_ = uuid.uuid4().hex
        for delta in deltas:
            self._update("agent_message_chunk", content=_text(delta), messageId=id_)

    # --- what it calls -----------------------------------------------------------------------

    def _ours(self, name: str) -> Tools:
        assert self._tools is not None
        assert name in self._tools.names, self._tools.names
        return self._tools

    def _calls(self, pairs: list[tuple[str, Any]], id_: str = "") -> None:
        results = [""] * len(pairs)

        def call(place: int, tool: str, args: Any) -> None:
            results[place] = self._call(tool.replace(".", "_"), args, id_)

        threads = [
            threading.Thread(target=call, args=[place, *pair]) for place, pair in enumerate(pairs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._results += results

    def _call(self, name: str, args: Any, id_: str) -> str:
        call = {"toolCallId": id_ or f"call-{uuid.uuid4().hex}", "title": f"nousd_{name}"}
        self._update("tool_call", **call, kind="other", status="pending", rawInput={})
        option = self._permission({**call, "kind": "other"})
        if option != "once":
            return option
        self._update("tool_call_update", **call, status="in_progress", rawInput=args)
        text = self._ours(name).call(name, args, id_)
        self._update("tool_call_update", **call, status="completed", content=[_content(text)])
        return text

    def _permission(self, call: dict[str, Any]) -> str:
        """Return the option that the user chose."""
        asked = self._ask("session/request_permission", toolCall=call, options=_OPTIONS)
        outcome = asked["result"]["outcome"]
        return str(outcome.get("optionId", outcome["outcome"]))

    def _own(self, pair: tuple[str, Any]) -> None:
        tool, args = pair
        call = {"toolCallId": "own-1", "title": "a command", "name": tool, "kind": "execute"}
        option = self._permission({**call, "rawInput": args})
        self._results.append(option)
        if option == "once":
            content = [_content("did it")]
            self._update("tool_call_update", **call, status="completed", content=content)

    def _disguised(self, pair: tuple[str, str]) -> None:
        tool, command = pair
        call = {"toolCallId": "own-2", "title": f"nousd_{tool.replace('.', '_')}"}
        self._update("tool_call", **call, status="pending")
        command_line = {"command": command}
        option = self._permission({**call, "kind": "execute", "rawInput": command_line})
        self._results.append(option)

    def _runs(self, pair: tuple[str, Any]) -> None:
        tool, args = pair
        call = {"toolCallId": f"own-{uuid.uuid4().hex}", "title": tool}
        self._update("tool_call", **call, name=tool, kind="read", rawInput=args)
        content = [_content(f"{tool} gave this")]
        self._update("tool_call_update", **call, status="completed", content=content)

    def _leaves(self, pair: tuple[str, Any]) -> None:
        tool, args = pair
        self._update("tool_call", toolCallId="own-3", title=tool, kind="fetch", rawInput=args)

    def _fetches(self, _: bool) -> None:
        for method, params in (
            ("fs/read_text_file", {"path": "/etc/hostname"}),
            ("terminal/create", {"command": "true"}),
        ):
            self._results.append(str(self._ask(method, **params)["error"]["code"]))

    # --- how it goes on ----------------------------------------------------------------------

    def _hold(self, _: bool) -> None:
        """Think on, and call a tool now and then, until the turn is cancelled."""
        while not self._waiting.wait_stop(0.2):
            self._results.append(self._ours("workspace_read").call("workspace_read", {"path": "."}))

    def _stops(self, reason: str) -> None:
        self._stop_reason = reason

    def _costs(self, amount: float) -> None:
        cost = {"amount": amount, "currency": "USD"}
        self._update("usage_update", used=10, size=1000, cost=cost)

    def _plans(self, steps: list[str]) -> None:
        entries = [{"content": step, "status": "pending", "priority": "high"} for step in steps]
        self._update("plan", entries=entries)

    def _picture(self, _: bool) -> None:
        image = {"type": "image", "mimeType": "image/png", "data": "AAAA"}
        self._update("agent_message_chunk", content=image)

    def _unknown(self, count: int) -> None:
        for number in range(count):
            self._update("something_new", number=number)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _content(text: str) -> dict[str, Any]:
    return {"type": "content", "content": _text(text)}


def _fail(words: str) -> None:
    raise Refused(-32603, words)


def _deaf(_: bool) -> None:
    threading.Event().wait()


Program(Path(sys.argv[1]).expanduser(), json.loads(sys.argv[2])).run()
