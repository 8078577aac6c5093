"""A bare trio server that decodes a line and encodes an answer, and nothing else."""

from __future__ import annotations

import sys

import msgspec
import trio


class _Envelope(msgspec.Struct):
    id: str
    type: str


_decoder = msgspec.json.Decoder(_Envelope)
_encoder = msgspec.json.Encoder()


async def _serve(stream: trio.SocketStream) -> None:
    rest = b""
    while chunk := await stream.receive_some(65536):
        *lines, rest = (rest + chunk).split(b"\n")
        answers = [
            _encoder.encode({"v": "1", "id": _decoder.decode(line).id, "type": "pong", "ok": True})
            for line in lines
        ]
        await stream.send_all(b"".join(answer + b"\n" for answer in answers))


async def main(path: str) -> None:
    """Serves on a Unix socket until it is killed; prints the socket's path."""
    sock = trio.socket.socket(trio.socket.AF_UNIX)
    await sock.bind(path)
    sock.listen()
    print(path, flush=True)
    await trio.serve_listeners(_serve, [trio.SocketListener(sock)])


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
