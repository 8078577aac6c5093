"""The model: a server on loopback that answers as the last message of a request tells it to.

    burst N        N numbered deltas (see ``make_deltas``), as fast as the network takes them
    mixed N        the same, text and reasoning in turns, so that no two neighbours can be joined
    pace RATE N    N deltas, RATE in a second, each the time at which it was sent and a space
    stamp          one delta: the time at which the last byte of the request was here
    endless N      deltas of N characters, as fast as the network takes them, until the client has gone
    hold           no answer, until the client has gone
    call TOOL ARGS a call of that tool with those arguments, as JSON; to its result, one delta: the
                   nanoseconds from the last byte of the call to the last byte of the next request
    anything else  one delta

Times are ``time.monotonic_ns``, which is one clock for all processes of the machine. Not HTTP: just
enough of it for a client that behaves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from typing import Final, NamedTuple

import msgspec
import trio


def make_deltas(count: int) -> Iterator[str]:
    """Yield the texts of a burst's deltas."""
    return (f"{number:05d} " for number in range(count))


class _Message(msgspec.Struct):
    role: str = ""
    content: str | None = None


class _Body(msgspec.Struct):
    messages: list[_Message] = []


_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_USAGE: Final = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


def encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(**chunk: object) -> bytes:
    return encode_chunk(b"data: " + json.dumps(chunk).encode() + b"\n\n")


def _delta(text: str, field: str = "content") -> bytes:
    return _event(choices=[{"index": 0, "delta": {field: text}, "finish_reason": None}])


def _tail(reason: str) -> bytes:
    return (
        _event(choices=[{"index": 0, "delta": {}, "finish_reason": reason}])
        + _event(choices=[], usage=_USAGE)
        + encode_chunk(b"data: [DONE]\n\n")
        + b"0\r\n\r\n"
    )


_TAIL: Final = _tail("stop")


def _call(tool: str, args: str) -> bytes:
    function = {"name": tool, "arguments": args}
    call = {
        "index": 0,
        "id": f"call-{time.monotonic_ns()}",
        "type": "function",
        "function": function,
    }
    delta = {"tool_calls": [call]}
    return _event(choices=[{"index": 0, "delta": delta, "finish_reason": None}]) + _tail(
        "tool_calls"
    )


@cache
def _burst(count: int) -> bytes:
    return b"".join(map(_delta, make_deltas(count)))


@cache
def _encode_mixed_burst(count: int) -> bytes:
    fields = cycle(("content", "reasoning_content"))
    return b"".join(map(_delta, make_deltas(count), fields))


@cache
def _stretch(chars: int) -> bytes:
    """Return deltas of so many characters, about a quarter of a mebibyte of text in all."""
    return _delta("x" * chars) * max(1, 256 * 1024 // chars)


class Request(NamedTuple):
    """A request, and when its last byte was here (``time.monotonic_ns``)."""

    method: str
    path: str
    body: bytes
    arrived: int


class Requests:
    """The requests of one connection, one after the other."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._rest = b""

    async def next(self) -> Request | None:
        """Return the next request, None if there is none."""
        while b"\r\n\r\n" not in self._rest:
            if not await self._read_more():
                return None
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        fields = dict(line.lower().split(b":", 1) for line in lines)
        length = int(fields.get(b"content-length", 0))
        while len(self._rest) < length:
            if not await self._read_more():
                return None
        arrived = time.monotonic_ns()
        body, self._rest = self._rest[:length], self._rest[length:]
        method, path, _ = first.decode().split()
        return Request(method, path, body, arrived)

    async def _read_more(self) -> bool:
        chunk = await self._stream.receive_some(256 * 1024)
        self._rest += chunk
        return bool(chunk)


class _Connection:
    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._requests = Requests(stream)
        self._called = 0

    async def serve(self) -> None:
        while (request := await self._requests.next()) is not None:
            arrived = request.arrived
            messages = msgspec.json.decode(request.body, type=_Body).messages
            last = messages[-1] if messages else _Message()
            if last.role == "tool":
                await self._say(str(arrived - self._called))
            else:
                await self._answer((last.content or "").split(), arrived)

    async def _answer(self, words: list[str], arrived: int) -> None:
        match words:
            case ["burst", count]:
                await self._stream.send_all(_HEAD + _burst(int(count)) + _TAIL)
            case ["mixed", count]:
                await self._stream.send_all(_HEAD + _encode_mixed_burst(int(count)) + _TAIL)
            case ["pace", rate, count]:
                await self._stream.send_all(_HEAD)
                await self._send_paced(float(rate), int(count))
                await self._stream.send_all(_TAIL)
            case ["endless", chars]:
                await self._stream.send_all(_HEAD)
                while True:
                    await self._stream.send_all(_stretch(int(chars)))
            case ["call", tool, *args]:
                await self._stream.send_all(_HEAD + _call(tool, " ".join(args)))
                self._called = time.monotonic_ns()
            case ["hold"]:
                await self._stream.receive_some(1)
            case _:
                await self._say(str(arrived) if words == ["stamp"] else "ok")

    async def _say(self, text: str) -> None:
        await self._stream.send_all(_HEAD + _delta(text) + _TAIL)

    async def _send_paced(self, rate: float, count: int) -> None:
        start = trio.current_time()
        for number in range(count):
            await trio.sleep_until(start + number / rate)
            await self._stream.send_all(_delta(f"{time.monotonic_ns()} "))


async def _serve(stream: trio.SocketStream) -> None:
    try:
        await _Connection(stream).serve()
    except trio.BrokenResourceError:
        return  # The client went away in the middle, as clients may.


async def main() -> None:
    """Serves until it is killed; prints its address."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    print(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/v1", flush=True)
    await trio.serve_listeners(_serve, listeners)


if __name__ == "__main__":
    trio.run(main)
