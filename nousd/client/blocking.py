"""The client for programs without an event loop, such as ``nousctl``, on blocking sockets.

It imports only the standard library and a few modules of nousd, because imports take most of the run
time of a small program. ``ask`` imports the structs when it is called.
"""

from __future__ import annotations

import math
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

from nousd.client.answers import (
    REQUEST_TIMEOUT_SECONDS,
    Answer,
    ReceivedEvent,
    decode_answer,
    decode_subscription_line,
    encode_request,
    new_splitter,
    whole_line,
)
from nousd.errors import AnswerInvalid, AnswerTimedOut, ConnectionLost, DaemonUnreachable
from nousd.runtime_paths import locations
from nousd.wire.codec.framing import LineTooLong

if TYPE_CHECKING:
    from nousd.wire.commands.base import AnsweredBy, Command
    from nousd.wire.responses.base import Response

    Expected = TypeVar("Expected", bound=Response)

R = TypeVar("R")

_READ_BYTES: Final = 256 * 1024
_WAIT_SECONDS_MAX: Final = 1_000_000.0
"""A wait that ``poll`` supports on every system, about eleven days."""


class _Lines:
    """Lines in both directions over a connected socket. Close it, or use it as a context manager.

    Deadlines are times of the monotonic clock, in seconds.
    """

    def __init__(self, path: Path, timeout_seconds: float) -> None:
        self._socket = _connect(path, timeout_seconds)
        self._splitter = new_splitter()
        self._ready: deque[bytes | LineTooLong] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor for ``select`` or ``poll``. Lines already read do not make it ready."""
        return self._socket.fileno()

    def peer_pid(self) -> int:
        """Return the id of the process that created the daemon's socket: the daemon, or the program that
        passed the socket to it. Return 0 if that process is in a PID namespace that is not visible here.
        """
        size = struct.calcsize("3i")
        peer = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return int(struct.unpack("3i", peer)[0])

    def hang_up(self) -> None:
        """Shut down the connection. ConnectionLost is raised in a thread that waits for a line. Do not
        ``close`` before that thread has ended, because the descriptor may then belong to another file.
        """
        with suppress(OSError):  # the daemon hung up first
            self._socket.shutdown(socket.SHUT_RDWR)

    def _send(self, data: bytes, deadline: float) -> None:
        """Send bytes. Raise AnswerTimedOut or ConnectionLost; the connection is unusable afterwards."""
        self._set_timeout(deadline)
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise AnswerTimedOut("the daemon does not read what is sent to it") from None
        except OSError as error:
            raise ConnectionLost(f"the daemon went away: {error.strerror}") from None

    def _receive(self, deadline: float) -> bytes | LineTooLong:
        """Return the next line. Raise AnswerTimedOut or ConnectionLost."""
        while not self._ready:
            self._set_timeout(deadline)
            try:
                chunk = self._socket.recv(_READ_BYTES)
            except TimeoutError:
                raise AnswerTimedOut("the daemon did not answer in time") from None
            except OSError as error:
                raise ConnectionLost(f"the daemon went away: {error.strerror}") from None
            if not chunk:
                raise ConnectionLost("the daemon closed the connection")
            self._ready.extend(self._splitter.feed(chunk))
        return self._ready.popleft()

    def _set_timeout(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise AnswerTimedOut("the daemon did not answer in time")
        self._socket.settimeout(None if left == math.inf else min(left, _WAIT_SECONDS_MAX))


class Connection(_Lines):
    """A connection to the command socket: one request at a time.

    Args:
        socket_path: the daemon's command socket.
        timeout_seconds: for connecting, and the default for each answer.

    Raises:
        DaemonUnreachable: no daemon listens there.
    """

    def __init__(
        self, socket_path: Path, *, timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
    ) -> None:
        super().__init__(socket_path, timeout_seconds)
        self._timeout_seconds = timeout_seconds
        self._requests = 0

    @overload
    def ask(self, command: AnsweredBy[R], *, timeout_seconds: float | None = None) -> R: ...

    @overload
    def ask(
        self, command: Command, expected: type[Expected], *, timeout_seconds: float | None = None
    ) -> Expected: ...

    def ask(
        self,
        command: Command,
        expected: type[Response] | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Send a command and return the payload of its answer as its struct.

        Args:
            expected: for a command with several answers, the expected one.

        Raises:
            Refused, AnswerTimedOut, ConnectionLost: as ``request``.
            AnswerInvalid: the daemon sent another answer.
        """
        from nousd.client.typed import request_of, response_of

        type_, payload = request_of(command)
        answer = self.request(type_, payload, timeout_seconds=timeout_seconds)
        return response_of(answer, command, expected)

    def request(
        self, type_: str, payload: Mapping[str, Any], *, timeout_seconds: float | None = None
    ) -> Answer:
        """Send a command and return its answer.

        Raises:
            Refused: the daemon answered with an error.
            AnswerTimedOut: close the connection; a late answer would be taken for that of the next
                request.
            AnswerInvalid, ConnectionLost: the connection is no longer usable.
        """
        self._requests += 1
        request_id = f"c{self._requests}"
        line = encode_request(request_id, type_, payload)
        answer = decode_answer(self.exchange(line, timeout_seconds=timeout_seconds))
        # An error about a line that the daemon could not read has no id.
        if answer.id not in (request_id, ""):
            raise AnswerInvalid("the daemon answered a request that was not sent")
        return answer.raise_for_refusal()

    def exchange(self, line: bytes, *, timeout_seconds: float | None = None) -> bytes:
        """Send a line, which ends in LF, unchanged, and return the line that the daemon sends back.

        Raises:
            AnswerTimedOut, ConnectionLost, AnswerInvalid: the connection is no longer usable.
        """
        seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        deadline = time.monotonic() + seconds
        self._send(line, deadline)
        return whole_line(self._receive(deadline))


class Subscription(_Lines):
    """An iterator over new events, which ends only with an exception.

    Nothing is read ahead of the caller except the rest of one read; a slow caller slows the daemon's
    sending to this connection and nothing else.

    Args:
        socket_path: the path of the command socket; that of the event socket is derived from it.
        wanted: the payload of ``subscribe``: any of ``after``, ``session_id``, ``run_id``, ``types``,
            ``confirms``, ``keepalive_seconds``. Keep-alives are not returned.
        timeout_seconds: for connecting and for the answer. Events have no time-out, unless
            ``next_event`` gets one.

    Raises:
        DaemonUnreachable, Refused, AnswerTimedOut, ConnectionLost, AnswerInvalid
    """

    def __init__(
        self,
        socket_path: Path,
        wanted: Mapping[str, Any],
        *,
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    ) -> None:
        super().__init__(locations.events_socket(socket_path), timeout_seconds)
        deadline = time.monotonic() + timeout_seconds
        with ExitStack() as undo:
            undo.callback(self.close)
            self._send(encode_request("s1", "subscribe", wanted), deadline)
            self.subscribed = self._answer(deadline).raise_for_refusal().payload
            """The answer: ``cursor``, after which events follow, and ``head``, the newest event at that
            time."""
            undo.pop_all()
        self.cursor: str = self.subscribed.get("cursor", "")
        """The cursor from which to continue after a lost connection: that of the last event that was
        returned, or that a keep-alive reported as filtered out."""

    def change(self, wanted: Mapping[str, Any]) -> None:
        """Subscribe to other events from now on. Another thread may be waiting for the next event.
        Events before the daemon's answer, which is not returned, belong to the old subscription.

        Raises:
            AnswerTimedOut, ConnectionLost
        """
        deadline = time.monotonic() + REQUEST_TIMEOUT_SECONDS
        self._send(encode_request("s1", "subscribe", wanted), deadline)

    def __iter__(self) -> Iterator[ReceivedEvent]:
        while True:
            yield self.next_event()

    def next_event(self, *, timeout_seconds: float = math.inf) -> ReceivedEvent:
        """Return the next event.

        Raises:
            AnswerTimedOut: no event came in time; call it again for the next one.
            ConnectionLost, AnswerInvalid
        """
        deadline = time.monotonic() + timeout_seconds
        while isinstance(received := decode_subscription_line(self._receive(deadline)), Answer):
            self.cursor = received.raise_for_refusal().payload.get("cursor", self.cursor)
        self.cursor = received.id
        return received

    def _answer(self, deadline: float) -> Answer:
        while True:
            received = decode_subscription_line(self._receive(deadline))
            if isinstance(received, Answer):
                return received


def _connect(path: Path, timeout_seconds: float) -> socket.socket:
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connecting.settimeout(timeout_seconds)
    try:
        connecting.connect(str(path))
    except OSError as error:
        connecting.close()
        reason = error.strerror or str(error)
        raise DaemonUnreachable(f"no daemon listens on {path}: {reason}") from None
    return connecting
