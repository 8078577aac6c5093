"""A scripted model server on loopback.

It speaks Chat Completions where a test does not make the replies of another dialect itself.

::

    async with stub_model() as stub:
        stub.script(text_reply("Hel", "lo"), error_reply(429, "slow down"))
        ...                                   # point a provider or a daemon at stub.api_base
        request = await stub.next_request()   # .json, .headers, .path
        await stub.wait_closed()              # until no connection is open

Each request takes the next scripted reply; with none left it gets ``DEFAULT_REPLY``, the text
``stub-reply`` in two deltas, with usage. A ``Gate`` among a reply's parts holds the stream until the
test opens it, and tells when the stream has got there.

It runs in the test's own trio loop, on a port of its own, and uses no clock but for a ``Pause``, so that
it works with any clock. It serves several connections and keeps them alive as HTTP/1.1 does.
"""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import h11
import trio

USAGE: Final = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


class Gate:
    """Holds a stream at one place.

    ``await gate.reached()`` returns when the server stands there; ``gate.open()`` lets it go on.
    """

    def __init__(self) -> None:
        self._reached = trio.Event()
        self._opened = trio.Event()

    def open(self) -> None:
        self._opened.set()

    async def reached(self) -> None:
        await self._reached.wait()

    async def pass_through(self) -> None:
        self._reached.set()
        await self._opened.wait()


class Pause(NamedTuple):
    """Holds a stream for a time."""

    seconds: float


Part = dict[str, Any] | bytes | Gate | Pause
"""A dict is sent as one event (named, if it has a ``type``), bytes as they are, each as an HTTP chunk of
its own."""


@dataclass(frozen=True)
class Reply:
    """The reply to one request.

    Args:
        parts: the body, in order.
        drops: closes the connection after the parts, without ending the body.
        drops_at_once: closes the connection instead of answering.
    """

    parts: Sequence[Part] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"
    drops: bool = False
    drops_at_once: bool = False


@dataclass(frozen=True)
class StubRequest:
    """A request as it came; ``headers`` by lower-case name."""

    path: str
    headers: Mapping[str, str]
    json: Any
    body: bytes = b""
    method: str = "POST"


DONE: Final = b"data: [DONE]\n\n"


def delta(**fields: Any) -> dict[str, Any]:
    """Return a chunk whose delta has those fields."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def call_delta(**fields: Any) -> dict[str, Any]:
    """Return a chunk with one tool call entry of those fields."""
    return delta(tool_calls=[fields])


def finish(reason: str = "stop", usage: Mapping[str, Any] | None = USAGE) -> tuple[Part, ...]:
    """Return the parts that end a good stream: finish reason, usage, end marker."""
    last: list[Part] = [{"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}]
    if usage is not None:
        last.append({"choices": [], "usage": dict(usage)})
    return (*last, DONE)


def text_reply(*texts: str | Gate, usage: Mapping[str, Any] | None = USAGE) -> Reply:
    """Return a reply that streams those texts, one delta each."""
    parts = [delta(content=text) if isinstance(text, str) else text for text in texts]
    return Reply((*parts, *finish(usage=usage)))


def tool_reply(*calls: tuple[str, Mapping[str, Any]], text: str = "") -> Reply:
    """Return a reply that asks for those tools, given as (name, arguments), all in one message."""
    parts: list[Part] = [delta(content=text)] if text else []
    for index, (name, arguments) in enumerate(calls):
        function = {"name": name, "arguments": json.dumps(arguments)}
        parts.append(
            call_delta(index=index, id=f"stub-call-{index}", type="function", function=function)
        )
    return Reply((*parts, *finish("tool_calls")))


def error_reply(
    status: int, message: str = "", *, code: str | None = None, **headers: str
) -> Reply:
    """Return a refusal; ``retry_after="1"`` becomes the header Retry-After."""
    error = {"message": message, "type": "stub_error", "code": code}
    return Reply(
        (json.dumps({"error": error}).encode(),) if message else (),
        status=status,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
        content_type="application/json",
    )


def whole_reply(content: str, **message: Any) -> Reply:
    """Return a completion that is not streamed."""
    body = {
        "choices": [
            {"message": {"content": content, **message}, "finish_reason": "stop", "index": 0}
        ],
        "usage": USAGE,
    }
    return Reply((json.dumps(body).encode(),), content_type="application/json")


def models_reply(*models: str) -> Reply:
    """Return a list of the models that a server has."""
    body = json.dumps({"object": "list", "data": [{"id": model} for model in models]})
    return Reply((body.encode(),), content_type="application/json")


def hanging_reply() -> Reply:
    """Return a reply that sends nothing."""
    return Reply((Gate(),))


def burst_reply(count: int, text: str = "word ") -> Reply:
    """Return a reply of ``count`` equal deltas, sent as fast as the network takes them."""
    return Reply((burst(*[delta(content=text)] * count), *finish()))


def burst(*chunks: dict[str, Any]) -> Part:
    """Return chunks as one part of a reply, sent as fast as the network takes them."""
    return framed([event(chunk) for chunk in chunks])


def framed(chunks: Iterable[bytes]) -> Part:
    """Return HTTP chunks of that content as one part of a reply."""
    return _Framed(b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks))


class _Framed(bytes):
    """Bytes that are HTTP chunks already."""


DEFAULT_REPLY: Final = text_reply("stub-", "reply")


Model = Callable[[StubRequest], Reply]
"""Makes the reply to a request for which none was scripted."""


class StubModel:
    """The running server; made by ``stub_model``."""

    def __init__(self, port: int, model: Model) -> None:
        self.origin = f"http://127.0.0.1:{port}"
        self.api_base = f"{self.origin}/v1"
        self.requests: list[StubRequest] = []
        self.connections_made = 0
        self._replies: deque[Reply] = deque()
        self._model = model
        self._open = 0
        self._taken = 0
        self._changed = trio.Condition()

    @property
    def connections_open(self) -> int:
        return self._open

    def script(self, *replies: Reply) -> None:
        """Add replies for the next requests."""
        self._replies.extend(replies)

    async def next_request(self) -> StubRequest:
        """Return the next request that was not returned yet, waiting for it."""
        async with self._changed:
            while len(self.requests) <= self._taken:
                await self._changed.wait()
        self._taken += 1
        return self.requests[self._taken - 1]

    async def wait_closed(self) -> None:
        """Return when no connection is open."""
        async with self._changed:
            while self._open:
                await self._changed.wait()

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.connections_made += 1
        self._open += 1
        try:
            await _Connection(stream, self).run()
        except* (OSError, trio.BrokenResourceError, h11.RemoteProtocolError):
            pass  # The client went away in the middle, as clients may.
        finally:
            self._open -= 1
            with trio.CancelScope(shield=True):
                async with self._changed:
                    self._changed.notify_all()

    async def _take(self, request: StubRequest) -> Reply:
        self.requests.append(request)
        async with self._changed:
            self._changed.notify_all()
        return self._replies.popleft() if self._replies else self._model(request)


class _Connection:
    """An HTTP/1.1 connection."""

    def __init__(self, stream: trio.SocketStream, stub: StubModel) -> None:
        self._stream = stream
        self._stub = stub
        self._http = h11.Connection(h11.SERVER)

    async def run(self) -> None:
        while (request := await self._read_request()) is not None:
            reply = await self._stub._take(request)
            if reply.drops_at_once or not await self._answer_watched(reply):
                return
            self._http.start_next_cycle()

    async def _read_request(self) -> StubRequest | None:
        head: h11.Request | None = None
        body = b""
        while True:
            event = await self._next_event()
            if isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                headers = {name.decode(): value.decode() for name, value in head.headers}
                path, method = head.target.decode(), head.method.decode()
                return StubRequest(path, headers, json.loads(body or b"null"), body, method)
            else:
                return None

    async def _next_event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._stream.receive_some(65536))
        return event

    async def _answer_watched(self, reply: Reply) -> bool:
        """Answer, and return True if the connection can serve another request.

        While the answer is held at a gate the client may go away, which has to be looked for.
        """
        finished = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_gone, nursery.cancel_scope)
            await self._answer(reply)
            finished = not reply.drops
            nursery.cancel_scope.cancel()
        return finished

    async def _cancel_when_gone(self, scope: trio.CancelScope) -> None:
        # Looked at but not taken: bytes may be the beginning of the client's next request.
        if not await self._stream.socket.recv(1, socket.MSG_PEEK):
            scope.cancel()

    async def _answer(self, reply: Reply) -> None:
        headers = {"content-type": reply.content_type, **reply.headers}
        await self._send(h11.Response(status_code=reply.status, headers=list(headers.items())))
        for part in reply.parts:
            if isinstance(part, Gate):
                await part.pass_through()
            elif isinstance(part, Pause):
                await trio.sleep(part.seconds)
            elif isinstance(part, _Framed):
                await self._stream.send_all(part)
            else:
                await self._send(h11.Data(part if isinstance(part, bytes) else event(part)))
        if not reply.drops:
            await self._send(h11.EndOfMessage())

    async def _send(self, event: Any) -> None:
        await self._stream.send_all(self._http.send(event) or b"")


def event(chunk: dict[str, Any]) -> bytes:
    """Return the bytes of an event of a stream."""
    name = f"event: {chunk['type']}\n" if "type" in chunk else ""
    return f"{name}data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode()


@asynccontextmanager
async def stub_model(model: Model = lambda _: DEFAULT_REPLY) -> AsyncIterator[StubModel]:
    """Run a stub until the block is left; connections still open are then closed."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        stub = StubModel(listeners[0].socket.getsockname()[1], model)
        nursery.start_soon(trio.serve_listeners, stub._serve, listeners)
        yield stub
        nursery.cancel_scope.cancel()
