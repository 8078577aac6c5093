"""The model of the peers: a server on loopback, in the dialect of each request.

    call TOOL ARGS a call of that tool with those arguments, as JSON; to its result, the nanoseconds from
                   the last byte of the call to the last byte of the next request
    stamp          two times: at which the last byte of the request was here, and at which the delta was
                   sent
    burst N        the time at which it was sent and N numbered deltas, as fast as the network takes them
    anything else  one delta

Times are ``time.monotonic_ns``, which is one clock for all processes of the machine. All of an answer
is sent at once; but of ``stamp`` the end comes later than the delta, so that nobody waits for both.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

import trio

from tests.harness.stub_model import Reply, StubRequest, event
from tests.runtimes.acting_model import Told, told_in
from tests.runtimes.model_dialects import Call, Dialect, Say, dialect_of

from .model_stub import Request, Requests, encode_chunk, make_deltas

_TEXT: Final = "text-of-the-answer"
"""Stands for the text until it is sent: it may tell the time of that."""

_LAST_CHUNK: Final = b"0\r\n\r\n"
_RESULT_CHARS: Final = 300
_END_SECONDS: Final = 0.05
_NOT_FOUND: Final = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class _Frame(NamedTuple):
    """An answer without its text: what comes before the delta, the delta, and what comes after it."""

    start: bytes
    delta: bytes
    end: bytes

    def deltas(self, *texts: str) -> bytes:
        return b"".join(
            encode_chunk(self.delta.replace(_TEXT.encode(), text.encode())) for text in texts
        )

    def after(self, text: str) -> bytes:
        """Return the end of an answer of that text."""
        end = self.end.replace(_TEXT.encode(), text.encode())
        return (encode_chunk(end) if end else b"") + _LAST_CHUNK


def _head(reply: Reply) -> bytes:
    fields = f"Content-Type: {reply.content_type}\r\nTransfer-Encoding: chunked"
    return f"HTTP/1.1 {reply.status} OK\r\n{fields}\r\n\r\n".encode()


def _parts(reply: Reply) -> Iterator[bytes]:
    for part in reply.parts:
        if isinstance(part, dict):
            yield event(part)
        elif isinstance(part, bytes):
            yield part


def _frame(dialect: Dialect) -> _Frame:
    reply = dialect.reply([Say(_TEXT)])
    parts = list(_parts(reply))
    place = next(place for place, part in enumerate(parts) if _TEXT.encode() in part)
    start = b"".join(map(encode_chunk, parts[:place]))
    return _Frame(_head(reply) + start, parts[place], b"".join(parts[place + 1 :]))


class Model:
    """What connections share: a program may ask again on another one."""

    def __init__(self) -> None:
        self._called = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        requests = Requests(stream)
        try:
            while (request := await requests.next()) is not None:
                await self._answer(stream, request)
        except trio.BrokenResourceError:
            return  # The client went away in the middle, as clients may.

    async def _answer(self, stream: trio.SocketStream, request: Request) -> None:
        body = json.loads(request.body or b"null")
        dialect = dialect_of(StubRequest(request.path, {}, body, request.body, request.method))
        if dialect is None:
            await stream.send_all(_NOT_FOUND)
        else:
            # Without tools it is an errand of the program's own, as for a title.
            told = told_in(dialect.items) if dialect.tools else Told("", 0, ())
            await self._say(stream, dialect, told, request.arrived)

    async def _say(
        self, stream: trio.SocketStream, dialect: Dialect, told: Told, arrived: int
    ) -> None:
        match told.text.split(maxsplit=2):
            case _ if told.calls:
                await _send(stream, dialect, lambda: [f"{arrived - self._called} {_words(told)}"])
            case ["call", tool, args]:
                call = Call(f"call_{uuid.uuid4().hex}", tool, json.loads(args))
                reply = dialect.reply([call])
                body = b"".join(map(encode_chunk, _parts(reply)))
                whole = _head(reply) + body + _LAST_CHUNK
                # Before it is sent: afterwards the program may have been at work for a while.
                self._called = time.monotonic_ns()
                await stream.send_all(whole)
            case ["stamp"]:
                texts = partial(_stamp, arrived)
                await _send(stream, dialect, texts, pause=_END_SECONDS)
            case ["burst", count]:
                await _send(stream, dialect, partial(_burst, int(count)))
            case _:
                await _send(stream, dialect, lambda: ["ok"])


def _words(told: Told) -> str:
    """Return the words of the last result, which no dialect has to quote."""
    return " ".join(re.findall(r"[\w.,:/-]+", told.results[-1]))[:_RESULT_CHARS]


def _stamp(arrived: int) -> list[str]:
    return [f"{arrived} {time.monotonic_ns()}"]


def _burst(count: int) -> list[str]:
    return [f"{time.monotonic_ns()} ", *make_deltas(count)]


async def _send(
    stream: trio.SocketStream,
    dialect: Dialect,
    texts: Callable[[], list[str]],
    *,
    pause: float = 0,
) -> None:
    """Send an answer; the texts of its deltas are asked for when they are sent."""
    frame = _frame(dialect)
    deltas = texts()
    await stream.send_all(frame.start + frame.deltas(*deltas))
    await trio.sleep(pause)
    await stream.send_all(frame.after("".join(deltas)))


async def main() -> None:
    """Serves until it is killed; prints its address."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    print(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}", flush=True)
    await trio.serve_listeners(Model().serve, listeners)


if __name__ == "__main__":
    trio.run(main)
