"""A fake daemon on real Unix sockets, which sends scripted answers and records its requests.

It knows the envelope and nothing else of v1.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Reply = Callable[[dict[str, Any]], bytes | None]
"""From a request to the line that answers it; b"" says nothing, None closes the connection."""


def ok(type_: str, payload: dict[str, Any] | None = None) -> Reply:
    """Return a reply with this answer."""
    return lambda request: _line(
        {"v": "1", "id": request["id"], "type": type_, "payload": payload or {}, "ok": True}
    )


def refused(code: str, message: str, **more: Any) -> Reply:
    """Return a reply with an error; ``more`` is ``cause`` and ``details``."""
    error = {"code": code, "message": message, **more}
    return lambda request: _line(
        {
            "v": "1",
            "id": request["id"],
            "type": "error",
            "payload": {},
            "ok": False,
            "error": error,
        }
    )


def says(line: bytes | None) -> Reply:
    """Return a reply with exactly this line."""
    return lambda _request: line


def event(number: int, type_: str, **payload: Any) -> bytes:
    """Return an event line."""
    ts = "2026-01-02T03:04:05Z"
    return _line({"v": "1", "id": f"evt-{number}", "type": type_, "payload": payload, "ts": ts})


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


class FakeDaemon:
    """Listens on ``folder/nousd.sock`` and the event socket beside it while it is entered.

    Args:
        on: type of a request -> its reply; ``otherwise`` where there is none.
        before_subscribed: sent on the event socket before the answer to ``subscribe``.
        heard: every line received on either socket, decoded, in order.
    """

    def __init__(self, folder: Path) -> None:
        self.socket_path = folder / "nousd.sock"
        self.on: dict[str, Reply] = {
            "subscribe": ok("subscribed", {"cursor": "evt-0", "head": "evt-0"})
        }
        self.otherwise: Reply = ok("pong", {"message": "pong"})
        self.before_subscribed = b""
        self.heard: list[dict[str, Any]] = []
        self.subscribed = threading.Event()
        self._history: list[bytes | None] = []
        self._subscribers: list[queue.SimpleQueue[bytes | None]] = []
        self._lock = threading.Lock()
        self._servers = [
            _Server(str(self.socket_path), self._serve_commands),
            _Server(f"{self.socket_path}.events", self._serve_events),
        ]

    def publish(self, line: bytes | None) -> None:
        """Send an event to everyone who subscribes, now or later; None closes the connection."""
        with self._lock:
            self._history.append(line)
            for subscriber in self._subscribers:
                subscriber.put(line)

    def __enter__(self) -> Self:
        for server in self._servers:
            # The poll interval only decides how fast the shutdown is noticed.
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.publish(None)
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def _serve_commands(self, handler: socketserver.StreamRequestHandler) -> None:
        for line in handler.rfile:
            answer = self._answer(line)
            if answer is None:
                return
            handler.wfile.write(answer)

    def _serve_events(self, handler: socketserver.StreamRequestHandler) -> None:
        line = handler.rfile.readline()
        if not line:
            return
        handler.wfile.write(self.before_subscribed)
        answer = self._answer(line)
        if answer is None:
            return
        handler.wfile.write(answer)
        lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        with self._lock:
            for published in self._history:
                lines.put(published)
            self._subscribers.append(lines)
        self.subscribed.set()
        listener = threading.Thread(target=self._hear, args=(handler, lines), daemon=True)
        listener.start()
        try:
            while (published := lines.get()) is not None:
                handler.wfile.write(published)
        finally:
            with contextlib.suppress(OSError):  # the client may have hung up first
                handler.connection.shutdown(socket.SHUT_RDWR)
            listener.join()

    def _hear(
        self, handler: socketserver.StreamRequestHandler, lines: queue.SimpleQueue[bytes | None]
    ) -> None:
        """Answer later requests of a subscriber."""
        with contextlib.suppress(
            OSError, ValueError
        ):  # the client disconnected, or the handler has ended
            for line in handler.rfile:
                lines.put(self._answer(line))

    def _answer(self, line: bytes) -> bytes | None:
        try:
            request = json.loads(line)
        except ValueError:
            request = {"id": "", "type": line.decode().strip()}
        self.heard.append(request)
        return self.on.get(request["type"], self.otherwise)(request)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def __init__(
        self, path: str, serve: Callable[[socketserver.StreamRequestHandler], None]
    ) -> None:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                # A client may leave whenever it likes.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    serve(self)

        super().__init__(path, Handler)
