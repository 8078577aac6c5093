"""Plays a recording in place of a program's HTTP server (``http_recorder.py``, ``player.py``).

Usage: ``http_player.py FILE MARKS ...``. Standard library only: it runs alone.
"""

from __future__ import annotations

import itertools
import json
import queue
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# Behind everything else, as the daemon's own programs have it.
sys.path.append(str(Path(__file__).resolve().parents[3]))

from tests.runtimes.programs.http_recorder import ADDRESS
from tests.runtimes.programs.player import SECONDS_MAX, Player, Received, main

Message = dict[str, Any]


class Asked:
    """A request, and the parts of its answer."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.answers: queue.Queue[Message] = queue.Queue()


class Server(ThreadingHTTPServer):
    """The server that the daemon talks to; what it is asked is an iterator of messages."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._news: queue.Queue[Message] = queue.Queue()
        self._numbers = itertools.count()
        self.asked: dict[int, Asked] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def take(self, verb: str, path: str, body: Any) -> Asked:
        """Take a request."""
        number = next(self._numbers)
        asked = Asked({"request": number, "verb": verb, "path": path, "body": body})
        self.asked[number] = asked
        self._news.put(asked.message)
        return asked

    def __iter__(self) -> Iterator[Message]:
        while True:
            yield self._news.get()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = self.server.take(self.command, self.path, json.loads(body) if body else None)
        answer = asked.answers.get(timeout=SECONDS_MAX)
        self.send_response(answer["status"])
        if "body" in answer:
            told = b"" if answer["body"] is None else json.dumps(answer["body"]).encode()
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)
            return
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        while True:
            event = json.dumps(asked.answers.get()).encode()
            self.wfile.write(b"data: " + event + b"\n\n")
            self.wfile.flush()

    do_POST = do_PATCH = do_GET  # noqa: N815  names of the base class


class HttpPlayer(Player):
    """Plays one recording over HTTP."""

    def __init__(self, marks: Path) -> None:
        self._http = Server()
        super().__init__(marks, Received(self._http))
        self._numbers: dict[int, Asked] = {}
        self._followers: list[Asked] = []

    def _say(self, message: Any) -> None:
        if "line" in message:
            address = f"http://127.0.0.1:{self._http.server_port}"
            sys.stdout.write(message["line"].replace(ADDRESS, address) + "\n")
            sys.stdout.flush()
        elif "event" in message:
            for follower in self._followers:
                follower.answers.put(message["event"])
        else:
            asked = self._numbers[message["answer"]]
            if "body" not in message:
                self._followers.append(asked)
            asked.answers.put(message)

    def _learn(self, recorded: Any, actual: Any) -> None:
        self._numbers[recorded["request"]] = self._http.asked[actual["request"]]
        if recorded["path"] == "/mcp":
            config = actual["body"]["config"]
            self._server = (config["command"], config["environment"])
        super()._learn(recorded, actual)

    def _wait_for_the_end(self) -> None:
        sys.stdin.read()


if __name__ == "__main__":
    main(HttpPlayer, sys.argv[1], sys.argv[2])
