"""Replaces ``nc -N -U PATH`` and ``socat [-t S] - UNIX-CONNECT:PATH`` if they are not installed.

Sends standard input to a Unix socket, closes that half, and prints what comes back: until the other
side closes, or, as socat does, for ``S`` seconds after standard input ended.
"""

from __future__ import annotations

import socket
import sys


def main() -> None:
    """Copy bytes in both directions."""
    target = sys.argv[-1].removeprefix("UNIX-CONNECT:")
    timeout = float(sys.argv[sys.argv.index("-t") + 1]) if "-t" in sys.argv else None
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(target)
        connection.sendall(sys.stdin.buffer.read())
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(timeout)
        try:
            while chunk := connection.recv(65536):
                sys.stdout.buffer.write(chunk)
        except TimeoutError:
            pass


if __name__ == "__main__":
    main()
