"""What scripted programs use to call our tools: an MCP client over standard input and output.

Standard library only: the programs run alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from typing import Any


class Waiting:
    """Answers to requests, by their ids."""

    def __init__(self) -> None:
        self._answers: dict[Any, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self.is_stopped = False

    def put(self, id_: Any, answer: dict[str, Any]) -> None:
        with self._changed:
            self._answers[id_] = answer
            self._changed.notify_all()

    def get(self, id_: Any) -> dict[str, Any]:
        with self._changed:
            self._changed.wait_for(lambda: id_ in self._answers)
            return self._answers[id_]

    def stop(self, *, is_stopped: bool) -> None:
        with self._changed:
            self.is_stopped = is_stopped
            self._changed.notify_all()

    def wait_stop(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.is_stopped, seconds)


class Tools:
    """An MCP client of a server that is started for it."""

    def __init__(self, argv: list[str], variables: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            argv,
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._waiting = Waiting()
        self._writing = threading.Lock()
        self._last_id = 0
        threading.Thread(target=self._read, daemon=True).start()
        self.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={})
        listed = self.ask("tools/list")["result"]["tools"]
        self.names = [tool["name"] for tool in listed]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            self._waiting.put(message["id"], message)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        with self._writing:
            self._last_id += 1
            number = self._last_id
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        return self._waiting.get(number)

    def call(self, name: str, args: Any, id_: str = "") -> str:
        named = {"_meta": {"callId": id_}} if id_ else {}
        answer = self.ask("tools/call", name=name, arguments=args, **named)
        return str(answer["result"]["content"][0]["text"])
