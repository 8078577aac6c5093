"""The client's connection to the command socket, on anyio: any number of requests in flight.

There is no background task. Of the callers that wait for an answer, one reads the stream and distributes
the answers; when it has its own answer, another caller takes over. So a connection is an ordinary
object: it needs no task group, a call raises its own errors, and cancelling one caller does not affect
the others.

A connection works over any byte stream of anyio; ``connect`` opens one to the command socket. A daemon
handles the commands of one connection in order, so a long command delays those after it: ``client`` uses
several connections.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import anyio.abc
import anyio.lowlevel

from nousd.client.answers import (
    REQUEST_TIMEOUT_SECONDS,
    Answer,
    decode_answer,
    encode_request,
    new_splitter,
)
from nousd.client.dial import Where, dial_of, has_news, wait_for_stream
from nousd.client.memory import MemoryStream
from nousd.client.typed import Asking, loads
from nousd.errors import AnswerInvalid, AnswerTimedOut, ClientError, ConnectionLost

IN_FLIGHT_MAX: Final = 64
"""Maximum requests without an answer on one connection; others wait. It is far below the daemon's own
limit, beyond which the daemon stops reading."""


class _InFlight:
    """A request that was sent, and its answer once it has arrived."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: Answer | None = None


class Connection(Asking):
    """One connection to the command socket. Open it with ``connect``, or over a stream of your own.

    Invariant: a caller waits without reading only while another caller reads.
    """

    def __init__(
        self,
        stream: anyio.abc.AnyByteStream,
        *,
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    ) -> None:
        self._stream = stream
        self._timeout_seconds = timeout_seconds
        self._splitter = new_splitter()
        self._requests = 0
        # In the order of sending, which is the order of the answers. An abandoned request stays until
        # its answer arrives.
        self._in_flight: dict[str, _InFlight] = {}
        self._sending = anyio.Lock(fast_acquire=True)
        self._reading = False
        self._news = anyio.Event()
        self._broken: ClientError | None = None

    async def aclose(self) -> None:
        """Close the connection. Waiting requests end with ConnectionLost."""
        self._break(ConnectionLost("the connection was closed"))
        await self._stream.aclose()

    @property
    def is_idle(self) -> bool:
        """True if the connection is usable and no answer is outstanding, not even that of an abandoned
        request.
        """
        return self._broken is None and not self._in_flight

    @property
    def was_left(self) -> bool:
        """True if the daemon has closed an idle connection, as far as is known without waiting."""
        return has_news(self._stream)

    async def request(
        self, type_: str, payload: Mapping[str, Any], *, timeout_seconds: float | None = None
    ) -> Answer:
        """Send a command and return its answer.

        Args:
            timeout_seconds: from the call to the answer; None for the connection's default.

        Raises:
            Refused: the daemon answered with an error.
            AnswerTimedOut: the command may have been carried out. The connection stays usable, unless
                the time ran out while sending; the same holds if the request is cancelled.
            ConnectionLost: the command may have been carried out. The connection is no longer usable.
            AnswerInvalid: the connection is no longer usable.
        """
        seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        if seconds == math.inf:
            return (await self._exchange(type_, payload)).raise_for_refusal()
        with anyio.move_on_after(seconds):
            return (await self._exchange(type_, payload)).raise_for_refusal()
        raise AnswerTimedOut(f"the daemon did not answer {type_} within {seconds:g} seconds")

    async def _exchange(self, type_: str, payload: Mapping[str, Any]) -> Answer:
        request = _InFlight()
        async with self._sending:
            await self._read_until(lambda: len(self._in_flight) < IN_FLIGHT_MAX)
            self._raise_if_broken()
            await anyio.lowlevel.checkpoint_if_cancelled()  # before anything is sent
            self._requests += 1
            request_id = f"c{self._requests}"
            line = encode_request(request_id, type_, payload)
            self._in_flight[request_id] = request
            await self._send(line)
        await self._read_until(lambda: request.answer is not None)
        assert request.answer is not None
        return request.answer

    async def _send(self, line: bytes) -> None:
        sent = self._send_at_once(line)
        try:
            if sent < len(line):
                await self._stream.send(line[sent:])
                sent = len(line)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._break(ConnectionLost("the daemon closed the connection"))
            self._raise_if_broken()
        finally:
            if sent < len(line):
                # The daemon would read the next request as the rest of the incomplete line.
                self._break(ConnectionLost("a request was given up while it was being sent"))

    def _send_at_once(self, line: bytes) -> int:
        """Send as much as possible without a checkpoint, at which the call could be cancelled. Return
        the number of bytes.
        """
        return self._stream.send_now(line) if isinstance(self._stream, MemoryStream) else 0

    async def _read_until(self, done: Callable[[], bool]) -> None:
        """Read, or let another caller read, until the condition holds."""
        while not done():
            self._raise_if_broken()
            if self._reading:
                await self._news.wait()
            else:
                await self._read()

    async def _read(self) -> None:
        """Read once and distribute the answers."""
        self._reading = True
        try:
            for line in self._splitter.feed(await self._stream.receive()):
                self._hand_out(decode_answer(line, loads))
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._break(ConnectionLost("the daemon closed the connection"))
        except AnswerInvalid as error:
            self._break(error)
        finally:
            self._reading = False
            self._tell_all()

    def _hand_out(self, answer: Answer) -> None:
        # An error about a line that the daemon could not read has no id; answers come in order.
        request_id = answer.id or next(iter(self._in_flight), "")
        request = self._in_flight.pop(request_id, None)
        if request is None:
            raise AnswerInvalid("the daemon answered a request that was not sent")
        request.answer = answer

    def _break(self, reason: ClientError) -> None:
        """Mark the connection as unusable. Only the first reason is kept."""
        self._broken = self._broken or reason
        self._tell_all()

    def _raise_if_broken(self) -> None:
        if self._broken is not None:
            # Each caller raises a new exception, because they run in different tasks.
            raise type(self._broken)(*self._broken.args)

    def _tell_all(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()


@asynccontextmanager
async def connect(
    where: Where, *, timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
) -> AsyncIterator[Connection]:
    """Open a connection to a daemon.

    Args:
        timeout_seconds: for connecting, and the default for each answer.

    Raises:
        DaemonUnreachable: no daemon listens.
    """
    dial = dial_of(where)
    stream = await wait_for_stream(dial.commands(), dial, timeout_seconds)
    connection = Connection(stream, timeout_seconds=timeout_seconds)
    try:
        yield connection
    finally:
        await connection.aclose()
