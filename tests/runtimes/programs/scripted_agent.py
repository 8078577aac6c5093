"""An agent program with a protocol of its own: JSON-RPC in both directions, and all that agents do.

It keeps its sessions in the folder that its first argument names: what was said in each, so that a test
can see what it was resumed with.
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


class Failed(Exception):
    """The model's server failed."""


class Program:
    """The program, for one session.

    Args:
        memory: the folder of its sessions.
    """

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._session: dict[str, Any] = {}
        self._requests: queue.Queue[dict[str, Any]] = queue.Queue()
        self._steers: queue.Queue[str] = queue.Queue()
        self._answers: dict[int, dict[str, Any]] = {}
        self._answered = threading.Condition()
        self._stopped = threading.Event()
        self._last_id = 0
        self._results: list[str] = []
        self._late: list[tuple[str, Any]] = []
        self._acts: dict[str, Callable[[Any], None]] = {
            "say": self._say,
            "think": lambda text: self._tell("reasoning", delta=text),
            "call": lambda pair: self._call([pair]),
            "calls": self._call,
            "again": lambda pair: self._call([pair, pair], "call-same"),
            "leave": self._leave,
            "late": self._late.append,
            "own": self._own,
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
        }

    def run(self) -> None:
        """Serve the session until the input ends."""
        threading.Thread(target=self._read, daemon=True).start()
        self._begin(self._requests.get())
        while True:
            asked = self._requests.get()
            send({"id": asked["id"], "result": {}})
            self._turn(asked["params"]["text"])

    def _read(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            match message.get("method"):
                case None:
                    with self._answered:
                        self._answers[message["id"]] = message
                        self._answered.notify_all()
                case "interrupt":
                    self._stopped.set()
                    send({"id": message["id"], "result": {}})
                case "steer":
                    self._steers.put(message["params"]["text"])
                    send({"id": message["id"], "result": {}})
                case _:
                    self._requests.put(message)
        die(0)

    def _begin(self, asked: dict[str, Any]) -> None:
        params = asked["params"]
        if params["resume"]:
            self._session = json.loads((self._memory / params["resume"]).read_text())
        else:
            self._session = {"id": uuid.uuid4().hex, "said": [], "told": params["transcript"]}
        self._keep()
        send({"id": asked["id"], "result": {"session": self._session["id"], "version": "1.0"}})

    def _keep(self) -> None:
        self._memory.mkdir(parents=True, exist_ok=True)
        (self._memory / self._session["id"]).write_text(json.dumps(self._session))

    def _turn(self, text: str) -> None:
        self._stopped.clear()
        self._results = []
        self._session["said"].append(text)
        self._keep()
        acts = acts_of(text)
        if ("early", True) not in acts:
            self._tell("delivered")
        try:
            for name, what in acts:
                if not self._stopped.is_set():
                    self._acts[name](what)
        except Failed as failed:
            self._tell("turn_end", error=str(failed))
            return
        self._tell("usage", input=3, output=2)
        self._tell("turn_end")
        late, self._late[:] = [*self._late], []
        self._call(late)

    def _tell(self, method: str, **params: Any) -> None:
        send({"method": method, "params": params})

    def _ask(self, method: str, **params: Any) -> int:
        self._last_id += 1
        send({"id": self._last_id, "method": method, "params": params})
        return self._last_id

    def _answer(self, number: int) -> str:
        with self._answered:
            self._answered.wait_for(lambda: number in self._answers or self._stopped.is_set())
            answer = self._answers.get(number, {})
        return str(answer.get("result", {}).get("text", answer.get("error", "stopped")))

    def _say(self, *deltas: str) -> None:
        for delta in deltas:
            self._tell("text", delta=delta)
        self._tell("message_end")

    def _call(self, pairs: list[tuple[str, Any]], id_: str = "") -> None:
        asked = [
            self._ask("call", id=id_ or f"call-{uuid.uuid4().hex}", tool=tool, args=args)
            for tool, args in pairs
        ]
        self._results += map(self._answer, asked)

    def _leave(self, pair: tuple[str, Any]) -> None:
        tool, args = pair
        self._ask("call", id=f"call-{uuid.uuid4().hex}", tool=tool, args=args)

    def _own(self, pair: tuple[str, Any]) -> None:
        tool, args = pair
        self._results.append(self._answer(self._ask("may_run", id="own-1", tool=tool, args=args)))

    def _hold(self, _: bool) -> None:
        """Think on, and call a tool now and then, until there is a reason to stop."""
        while not self._stopped.is_set():
            try:
                steered = self._steers.get(timeout=0.3)
            except queue.Empty:
                self._call([("workspace.read", {"path": "."})])
                continue
            for name, what in acts_of(steered):
                self._acts[name](what)
            return

    def _fail(self, words: str) -> None:
        raise Failed(words)

    def _unknown(self, count: int) -> None:
        for number in range(count):
            self._tell("something_new", number=number)


def _deaf(_: bool) -> None:
    threading.Event().wait()


Program(Path(sys.argv[1])).run()
