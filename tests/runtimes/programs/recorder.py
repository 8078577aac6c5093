"""Stands between the daemon and a program, and writes down what each says (``recordings.py``).

Usage: ``recorder.py FILE COMMAND...``. A line of FILE is ``{"to": MESSAGE}`` for what the program is
sent and ``{"from": MESSAGE}`` for what it says; ``{"life": true}`` begins each start of it. If it starts
our MCP server itself, that is recorded as well: ``tools_to`` and ``tools_from``. A line is written down
before it is passed on, so what follows from it stands behind it.

Standard library only: it runs alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

_PREFIX = "--tools"


def _written(file: int, name: str, line: bytes) -> None:
    message = json.loads(line)
    os.write(file, json.dumps({name: message}, ensure_ascii=False).encode() + b"\n")


def _through_us(path: str, line: bytes) -> bytes:
    """Return a line that begins a session, with our MCP server behind another recorder."""
    message = json.loads(line)
    servers: list[dict[str, Any]] = message.get("params", {}).get("mcpServers", [])
    if not servers:
        return line
    for server in servers:
        words = ["-I", "-S", __file__, path, _PREFIX, server["command"], *server["args"]]
        server["command"], server["args"] = sys.executable, words
    return json.dumps(message).encode() + b"\n"


def _pass_on(path: str, name: str, source: IO[bytes], target: IO[bytes]) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for line in source:
        _written(file, name, line)
        target.write(_through_us(path, line) if name == "to" else line)
        target.flush()
    target.close()


def main(path: str, words: list[str]) -> int:
    """Run the program and pass on what it and the daemon say; return its exit code."""
    prefix = "tools_" if words[0] == _PREFIX else ""
    if not prefix:
        with Path(path).open("a") as file:
            file.write('{"life": true}\n')
    command = words[1:] if prefix else words
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdin is not None
    assert program.stdout is not None
    to = (path, f"{prefix}to", sys.stdin.buffer, program.stdin)
    threading.Thread(target=_pass_on, args=to, daemon=True).start()
    _pass_on(path, f"{prefix}from", program.stdout, sys.stdout.buffer)
    return program.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
