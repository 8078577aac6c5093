"""The program that an agent starts as its MCP server: it connects standard input and output to a socket.

It does not interpret the data that it passes on. It needs only the standard library, and ends when
either side ends.

Usage: ``_tools_main.py SOCKET``, with a token in the environment (``TOKEN_VARIABLE``).
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from typing import Final

TOKEN_VARIABLE: Final = "NOUSD_TOOLS_TOKEN"  # noqa: S105  the name of a variable
"""The variable with the token that proves to the daemon that the agent has started this program."""

_READ_BYTES: Final = 64 * 1024


def main(args: list[str]) -> int:
    """Connect standard input and output to a socket until either ends; return the exit code."""
    (path,) = args
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
        connection.sendall(os.environ.pop(TOKEN_VARIABLE, "").encode() + b"\n")
    except OSError as error:
        sys.stderr.write(f"the daemon's tools cannot be reached: {error}\n")
        return 1
    threading.Thread(target=_pass_on_input, args=(connection,), daemon=True).start()
    with contextlib.suppress(OSError):
        while data := connection.recv(_READ_BYTES):
            _write(data)
    return 0


def _pass_on_input(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(0, _READ_BYTES):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)


def _write(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
