"""Stands between the daemon and the HTTP server of a program, and writes down what each says.

Usage: ``http_recorder.py FILE COMMAND...``. Lines of FILE, as ``recorder.py`` has them:

- ``{"from": {"line": TEXT}}``: the program printed where it listens,
- ``{"to": {"request": N, "verb": VERB, "path": PATH, "body": JSON}}``: it was asked,
- ``{"from": {"answer": N, "status": STATUS, "body": JSON}}``: it answered; without ``body`` what
  follows are its events,
- ``{"from": {"event": JSON}}``: one of these.

Our MCP server, which the program starts, stands behind another recorder. Standard library only.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any, Final

ADDRESS: Final = "http://program.recorded"
"""Stands for where it listens."""

_LISTENS: Final = re.compile(r"http://127\.0\.0\.1:(\d+)")
_LOCK: Final = threading.Lock()


class Recorder(ThreadingHTTPServer):
    """The server that the daemon talks to instead of the program's.

    Args:
        path: the file of the recording.
        port: of the program.
    """

    daemon_threads = True

    def __init__(self, path: str, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.path, self.port = path, port
        self.numbers = itertools.count()

    def write(self, name: str, message: Any) -> None:
        """Write a line of the recording."""
        with _LOCK, Path(self.path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({name: message}, ensure_ascii=False) + "\n")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Recorder

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        self._pass_on()

    do_POST = do_PATCH = do_GET  # noqa: N815  names of the base class

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        number = next(self.server.numbers)
        asked = {"request": number, "verb": self.command, "path": self.path}
        self.server.write("to", {**asked, "body": json.loads(body) if body else None})
        if self.path == "/mcp":
            body = self._through_us(body)
        program = http.client.HTTPConnection("127.0.0.1", self.server.port)
        kept = {name: self.headers[name] for name in ("Authorization", "Content-Type", "Accept")}
        headers = {name: value for name, value in kept.items() if value}
        program.request(self.command, self.path, body or None, headers)
        response = program.getresponse()
        told = {"answer": number, "status": response.status}
        if "event-stream" in response.headers.get("Content-Type", ""):
            self.server.write("from", told)
            self._begin(response)
            self._pass_on_events(response)
            return
        answer = response.read()
        self.server.write("from", {**told, "body": json.loads(answer) if answer else None})
        self._begin(response, answer)

    def _begin(self, response: http.client.HTTPResponse, body: bytes | None = None) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.headers.get("Content-Type", "text/plain"))
        if body is None:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body or b"")

    def _pass_on_events(self, response: http.client.HTTPResponse) -> None:
        self.close_connection = True
        for line in response:
            if line.startswith(b"data:"):
                self.server.write("from", {"event": json.loads(line[5:])})
            self.wfile.write(line)
            self.wfile.flush()

    def _through_us(self, body: bytes) -> bytes:
        asked = json.loads(body)
        recorder = Path(__file__).with_name("recorder.py")
        words = [sys.executable, "-I", "-S", str(recorder), self.server.path, "--tools"]
        asked["config"]["command"] = [*words, *asked["config"]["command"]]
        return json.dumps(asked).encode()


def _listen(path: str, output: IO[str]) -> None:
    """Pass on what the program prints, with our address in place of its own."""
    for line in output:
        found = _LISTENS.search(line)
        said = line
        if found is not None:
            server = Recorder(path, int(found[1]))
            server.write("life", True)
            said = line.replace(found[0], f"http://127.0.0.1:{server.server_port}")
            server.write("from", {"line": line.replace(found[0], ADDRESS).strip()})
            threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdout.write(said)
        sys.stdout.flush()


def main(path: str, words: list[str]) -> int:
    """Run the program and pass on what it and the daemon say; return its exit code."""
    program = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ})
    assert program.stdout is not None
    _listen(path, program.stdout)
    return program.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
