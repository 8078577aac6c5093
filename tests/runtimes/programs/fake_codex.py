"""Codex as its app-server shows it, with acts for a model (``protocol/runtimes/codex.md``).

Its threads are files in ``CODEX_HOME``, else in ``~/.codex``: what each was begun with, and what was
said. What it was sent stands in ``sent.ndjson`` there. Acts of its own: ``{"until": FILE}`` waits until
there is the file, ``{"call_in_text": [TOOL, ARGS]}`` calls while it writes, ``{"change": PATH}`` asks
whether it may patch, ``{"again_said": TEXT}`` breaks off in the middle of a message and writes it
again.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.runtimes.programs.acts import (
    acts_of,
    die,
    flood_of,
    memory_of,
    send,
    send_garbage,
    send_raw,
)

_MODEL = "gpt-test-1"


class Stopped(Exception):
    """The user has ended the turn."""


class Failed(Exception):
    """The model's server failed."""


class Program:
    """The program, for one thread."""

    def __init__(self) -> None:
        self._home = memory_of("CODEX_HOME", ".codex")
        self._home.mkdir(parents=True, exist_ok=True)
        self._thread: dict[str, Any] = {}
        self._turn_id = ""
        self._turns: queue.Queue[dict[str, Any]] = queue.Queue()
        self._steers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._answers: dict[int, dict[str, Any]] = {}
        self._answered = threading.Condition()
        self._stopped = threading.Event()
        self._last_id = -1
        self._results: list[str] = []
        self._acts: dict[str, Callable[[Any], None]] = {
            "say": self._say,
            "think": self._think,
            "call": lambda pair: self._call([pair]),
            "calls": self._call,
            "again": lambda pair: self._call([pair, pair], "call_same"),
            "own": self._own,
            "runs": lambda pair: self._runs(pair, "started", "completed"),
            "leaves": lambda pair: self._runs(pair, "started"),
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
            "until": _until,
            "leave": self._leave,
            "call_in_text": self._call_in_text,
            "change": self._change,
            "again_said": self._again_said,
        }

    def run(self) -> None:
        """Serve the thread until the input ends."""
        threading.Thread(target=self._read, daemon=True).start()
        while True:
            self._turn(self._turns.get())

    def _read(self) -> None:
        with (self._home / "sent.ndjson").open("a") as sent:
            for line in sys.stdin:
                sent.write(line)
                sent.flush()
                message = json.loads(line)
                if "method" not in message:
                    with self._answered:
                        self._answers[message["id"]] = message
                        self._answered.notify_all()
                elif "id" in message:
                    self._asked(message)
        die(0)

    def _asked(self, message: dict[str, Any]) -> None:
        params: dict[str, Any] = message["params"]
        result: dict[str, Any] = {}
        match message["method"]:
            case "config/read":
                servers = {"planted": {"command": "sh"}}
                result = {"config": {"mcp_servers": servers}, "origins": {}}
            case "model/list":
                result = {"data": [{"id": "small"}, {"id": "large"}]}
            case "thread/start":
                self._thread = {"id": str(uuid.uuid4()), "told": [], "said": [], "calls": 0}
                result = self._thread_facts()
            case "thread/resume":
                kept = self._home / params["threadId"]
                if not kept.exists():
                    error = {"code": -32600, "message": "no rollout found"}
                    send({"id": message["id"], "error": error})
                    return
                self._thread = json.loads(kept.read_text())
                result = self._thread_facts()
                self._tell_usage()
            case "thread/inject_items":
                self._thread["told"] += params["items"]
            case "turn/start":
                self._turn_id = str(uuid.uuid4())
                self._turns.put(params)
                result = {"turn": self._turn_facts("inProgress")}
            case "turn/steer":
                self._steers.put(params)
                result = {"turnId": self._turn_id}
            case "turn/interrupt":
                self._stopped.set()
                with self._answered:
                    self._answered.notify_all()
        send({"id": message["id"], "result": result})

    def _thread_facts(self) -> dict[str, Any]:
        return {"thread": {"id": self._thread["id"], "cliVersion": "0.171.0"}, "model": _MODEL}

    def _turn_facts(self, status: str, **more: Any) -> dict[str, Any]:
        return {"id": self._turn_id, "items": [], "status": status, **more}

    def _note(self, method: str, **params: Any) -> None:
        send({"method": method, "params": {"threadId": self._thread["id"], **params}})

    def _item(self, state: str, type_: str, id_: str, **more: Any) -> None:
        item = {"type": type_, "id": id_, **more}
        self._note(f"item/{state}", turnId=self._turn_id, item=item)

    def _turn(self, asked: dict[str, Any]) -> None:
        self._stopped.clear()
        self._results = []
        self._note("turn/started", turn=self._turn_facts("inProgress"))
        acts = deque(self._heard(asked))
        status, more = "completed", {}
        try:
            while acts:
                self._act(*acts.popleft())
                if not self._steers.empty():
                    acts = deque(self._heard(self._steers.get()))
        except Stopped:
            status = "interrupted"
        except Failed as failed:
            status, more = "failed", {"error": {"message": str(failed)}}
            self._note("error", willRetry=False, turnId=self._turn_id, **more)
        self._note("turn/completed", turn=self._turn_facts(status, **more))

    def _heard(self, asked: dict[str, Any]) -> list[tuple[str, Any]]:
        """Take a text of the user, and confirm it."""
        text = asked["input"][0]["text"]
        self._thread["said"].append(text)
        self._keep()
        acts = acts_of(text)
        if ("early", True) not in acts:
            heard = {"clientId": asked["clientUserMessageId"], "content": asked["input"]}
            for state in ("started", "completed"):
                self._item(state, "userMessage", str(uuid.uuid4()), **heard)
        return acts

    def _keep(self) -> None:
        (self._home / self._thread["id"]).write_text(json.dumps(self._thread))

    def _act(self, name: str, what: Any) -> None:
        if self._stopped.is_set():
            raise Stopped
        self._acts[name](what)

    def _say(self, *deltas: str) -> None:
        id_ = self._begin_to_say(*deltas)
        self._item("completed", "agentMessage", id_, text="".join(deltas))
        self._model_call_is_over()

    def _begin_to_say(self, *deltas: str) -> str:
        id_ = f"msg_{uuid.uuid4().hex}"
        self._item("started", "agentMessage", id_, text="")
        for delta in deltas:
            self._note("item/agentMessage/delta", turnId=self._turn_id, itemId=id_, delta=delta)
        return id_

    def _again_said(self, text: str) -> None:
        self._begin_to_say(text[:1])
        self._note("error", willRetry=True, turnId=self._turn_id, error={"message": "torn"})
        self._say(text)

    def _call_in_text(self, pair: tuple[str, Any]) -> None:
        id_ = self._begin_to_say("whole ")
        self._call([pair])
        self._note("item/agentMessage/delta", turnId=self._turn_id, itemId=id_, delta="text")
        self._item("completed", "agentMessage", id_, text="whole text")
        self._model_call_is_over()

    def _think(self, text: str) -> None:
        id_ = f"rs_{uuid.uuid4().hex}"
        self._item("started", "reasoning", id_, summary=[])
        method = "item/reasoning/summaryTextDelta"
        self._note(method, turnId=self._turn_id, itemId=id_, summaryIndex=0, delta=text)
        self._item("completed", "reasoning", id_, summary=[text])

    def _model_call_is_over(self) -> None:
        self._thread["calls"] += 1
        self._keep()
        self._tell_usage()

    def _tell_usage(self) -> None:
        counts = {"inputTokens": 3, "cachedInputTokens": 1, "outputTokens": 2, "totalTokens": 5}
        total = {name: count * self._thread["calls"] for name, count in counts.items()}
        usage = {"last": counts, "total": total}
        self._note("thread/tokenUsage/updated", turnId=self._turn_id, tokenUsage=usage)

    def _ask(self, method: str, **params: Any) -> int:
        self._last_id += 1
        where = {"threadId": self._thread["id"], "turnId": self._turn_id}
        send({"id": self._last_id, "method": method, "params": {**where, **params}})
        return self._last_id

    def _answer(self, number: int) -> dict[str, Any]:
        with self._answered:
            self._answered.wait_for(lambda: number in self._answers or self._stopped.is_set())
            if number not in self._answers:
                raise Stopped
            answered: dict[str, Any] = self._answers[number]["result"]
            return answered

    def _call(self, pairs: list[tuple[str, Any]], id_: str = "") -> None:
        """Make calls at once; whatever the user says meanwhile is heard when they are over."""
        asked = []
        for tool, args in pairs:
            call_id, name = id_ or f"call_{uuid.uuid4().hex}", tool.replace(".", "_")
            self._item("started", "dynamicToolCall", call_id, tool=name, arguments=args)
            asked.append(self._ask("item/tool/call", callId=call_id, tool=name, arguments=args))
        for number in asked:
            self._results.append(self._answer(number)["contentItems"][0]["text"])
        self._model_call_is_over()

    def _leave(self, pair: tuple[str, Any]) -> None:
        tool, args = pair
        call_id = f"call_{uuid.uuid4().hex}"
        self._ask("item/tool/call", callId=call_id, tool=tool.replace(".", "_"), arguments=args)

    def _change(self, path: str) -> None:
        changes = [{"path": path, "kind": {"type": "add"}, "diff": "+x"}]
        self._item("started", "fileChange", "call_change", changes=changes, status="inProgress")
        asked = self._ask(
            "item/fileChange/requestApproval", itemId="call_change", startedAtMs=0, reason=None
        )
        self._results.append(self._answer(asked)["decision"])

    def _own(self, pair: tuple[str, Any]) -> None:
        _, args = pair
        id_, command = f"call_{uuid.uuid4().hex}", {"command": args["command"], "cwd": "/"}
        self._item("started", "commandExecution", id_, status="inProgress", **command)
        asked = self._ask(
            "item/commandExecution/requestApproval", itemId=id_, startedAtMs=0, **command
        )
        decision = self._answer(asked)["decision"]
        self._results.append({"accept": "allowed: did it"}.get(decision, decision))
        done = {"status": "completed", "aggregatedOutput": "did it", "exitCode": 0}
        ended = done if decision == "accept" else {"status": "declined"}
        self._item("completed", "commandExecution", id_, **command, **ended)

    def _runs(self, pair: tuple[str, Any], *states: str) -> None:
        tool, args = pair
        id_ = f"call_{uuid.uuid4().hex}"
        for state in states:
            self._item(state, {"view_image": "imageView"}[tool], id_, **args)

    def _hold(self, _: bool) -> None:
        """Think on, and call a tool now and then, until there is a reason to stop."""
        while self._steers.empty():
            if self._stopped.wait(0.3):
                raise Stopped
            self._call([("workspace.read", {"path": "."})])

    def _fail(self, words: str) -> None:
        raise Failed(words)

    def _unknown(self, count: int) -> None:
        for number in range(count):
            self._note("something/new", number=number)


def _until(file: str) -> None:
    while not Path(file).exists():
        time.sleep(0.01)


def _deaf(_: bool) -> None:
    threading.Event().wait()


Program().run()
