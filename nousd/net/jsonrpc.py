"""JSON-RPC 2.0 with a program, one message per line, in both directions.

Each request to the program waits for its answer under a number. Each request of the program is answered
by a separate task, so that a slow one (an approval) does not delay others. An unreadable line is never
fatal: it is passed on as unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import trio
from msgspec import UNSET, Raw, UnsetType

from nousd.errors import AgentFailed
from nousd.wire.codec.decoding import decode_json
from nousd.wire.codec.envelope import encode_json, is_nested_too_deep

REQUESTS_MAX: Final = 64
"""Maximum requests of the program that wait for an answer at the same time."""

_WITHDRAWAL_SECONDS: Final = 1.0
"""Time limit for sending the withdrawal of a request."""

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
SERVER_BUSY: Final = -32001
CANCELLED: Final = -32800

MessageId = int | str


def require_readable(line: bytes) -> bytes:
    """Return the line, checked so that its parts can be decoded separately.

    Raises:
        msgspec.DecodeError: the line is not UTF-8 or is nested too deep. A decoder that skips a part of
            a line notices neither.
    """
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError("it is not UTF-8") from error
    if is_nested_too_deep(line):
        raise msgspec.DecodeError("it nests too deep")
    return line


class RpcError(Exception):
    """An error that one side answers instead of a result.

    Args:
        code: the error code of JSON-RPC.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class FollowedResult(NamedTuple):
    """A result, and a function to call once it is sent, for messages that must follow it."""

    result: Any
    follow: Callable[[], None]


class _WithdrawnRequest(msgspec.Struct, rename="camel"):
    request_id: MessageId


class Peer(Protocol):
    """Handles the messages of a program."""

    async def answer(self, method: str, params: Raw) -> Any:
        """Return the result of a request of the program, or a ``FollowedResult``.

        It runs in a separate task. The next line is read when this first waits, so that requests begin
        in the order of their lines.

        Raises:
            RpcError: the error to answer with.
        """
        ...

    async def take_notification(self, method: str, params: Raw) -> None:
        """Take a notification. The next line is read when this returns."""
        ...

    async def take_unknown(self, line: bytes) -> None:
        """Take a line that is not a message, or that answers no request."""
        ...

    def end(self, failure: AgentFailed) -> None:
        """End the conversation with the program, which is unusable; see ``AgentLife.end``."""
        ...


class _Fault(msgspec.Struct):
    code: int = 0
    message: str = ""


class _Message(msgspec.Struct):
    id: MessageId | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw = Raw(b"{}")
    result: Raw | UnsetType = UNSET
    error: _Fault | UnsetType = UNSET


class _PendingRequest:
    """A request to the program that is not answered yet."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.settled = trio.Event()
        self.outcome: Raw | RpcError | AgentFailed | None = None

    def settle(self, outcome: Raw | RpcError | AgentFailed) -> None:
        self.outcome = outcome
        self.settled.set()


class JsonRpc:
    """One end of a connection.

    Args:
        write: sends a line.
        nursery: for the tasks that answer the program's requests.
        marks_version: whether messages carry ``jsonrpc``; some programs leave it out.
        withdrawal: the method of the notification, with the key ``requestId``, that withdraws a request
            to the program; None if there is none.
    """

    def __init__(
        self,
        write: Callable[[bytes], Awaitable[None]],
        peer: Peer,
        nursery: trio.Nursery,
        *,
        marks_version: bool = True,
        withdrawal: str | None = None,
    ) -> None:
        self._write = write
        self._peer = peer
        self._nursery = nursery
        self._head: dict[str, Any] = {"jsonrpc": "2.0"} if marks_version else {}
        self._withdrawal = withdrawal
        self._pending: dict[int, _PendingRequest] = {}
        self._answering: dict[MessageId, trio.CancelScope] = {}
        self._answered = trio.lowlevel.ParkingLot()
        self._last_id = 0
        self._failure: AgentFailed | None = None

    async def call(self, method: str, params: Any, *, seconds: float) -> Raw:
        """Send a request and return its result. If the wait ends without one, withdraw the request.

        Raises:
            RpcError: the program's error.
            AgentFailed: the program did not answer in time, or has ended.
        """
        if self._failure is not None:
            raise self._failure
        self._last_id += 1
        number = self._last_id
        pending = self._pending[number] = _PendingRequest(method)
        try:
            await self._send({"id": number, "method": method, "params": params})
            with trio.move_on_after(seconds) as limit:
                await pending.settled.wait()
            if limit.cancelled_caught and pending.outcome is None:
                raise AgentFailed(f"it did not answer {method} within {seconds:g} seconds")
        finally:
            del self._pending[number]
            if pending.outcome is None:
                await self._tell_withdrawn(number)
        match pending.outcome:
            case RpcError() | AgentFailed() as failure:
                raise failure
            case outcome:
                assert outcome is not None
                return outcome

    async def _tell_withdrawn(self, number: int) -> None:
        if self._withdrawal is not None and self._failure is None:
            with trio.move_on_after(_WITHDRAWAL_SECONDS, shield=True):
                await self.notify(self._withdrawal, {"requestId": number})

    async def notify(self, method: str, params: Any) -> None:
        """Send a notification."""
        await self._send({"method": method, "params": params})

    async def take(self, line: bytes) -> None:
        """Take a line of the program."""
        try:
            message = decode_json(require_readable(line), type=_Message)
        except msgspec.DecodeError:
            await self._peer.take_unknown(line)
            return
        if isinstance(message.method, str):
            if message.id is UNSET or message.id is None:
                await self._peer.take_notification(message.method, message.params)
            else:
                await self._begin_answer(message.id, message.method, message.params)
            return
        pending = self._pending.get(message.id) if isinstance(message.id, int) else None
        if pending is None or pending.settled.is_set():
            await self._peer.take_unknown(line)
        elif message.error is not UNSET:
            pending.settle(RpcError(message.error.code, message.error.message))
        else:
            pending.settle(Raw(b"null") if message.result is UNSET else message.result)

    async def wait_answered(self) -> None:
        """Wait until every request of the program is answered."""
        while self._answering:
            await self._answered.park()

    def withdraw(self, params: Raw) -> None:
        """Cancel a request that the program withdraws, and answer it with ``CANCELLED``.

        Args:
            params: the parameters of the program's notification, with the key ``requestId``. Unreadable
                ones are ignored.
        """
        with suppress(msgspec.DecodeError, UnicodeError):
            id_ = decode_json(params, type=_WithdrawnRequest).request_id
            if id_ in self._answering:
                self._answering[id_].cancel()

    def end(self, failure: AgentFailed) -> None:
        """Record that the program has ended: pending and later calls raise ``failure``."""
        self._failure = failure
        for pending in self._pending.values():
            pending.settle(failure)

    async def _begin_answer(self, id_: MessageId, method: str, params: Raw) -> None:
        if id_ in self._answering or len(self._answering) >= REQUESTS_MAX:
            await self._send_error(id_, RpcError(SERVER_BUSY, "too many requests at a time"))
            return
        scope = self._answering[id_] = trio.CancelScope()
        await self._nursery.start(self._answer, id_, method, params, scope)

    async def _answer(
        self,
        id_: MessageId,
        method: str,
        params: Raw,
        scope: trio.CancelScope,
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        task_status.started()
        try:
            with scope:
                try:
                    result = await self._peer.answer(method, params)
                except RpcError as error:
                    await self._send_error(id_, error)
                except msgspec.DecodeError as error:
                    await self._send_error(id_, RpcError(INVALID_PARAMS, str(error)))
                except AgentFailed as failure:
                    self._peer.end(failure)
                else:
                    await self._send_result(id_, result)
            if scope.cancelled_caught:
                await self._send_error(id_, RpcError(CANCELLED, "withdrawn"))
        finally:
            del self._answering[id_]
            self._answered.unpark_all()

    async def _send_result(self, id_: MessageId, result: Any) -> None:
        if isinstance(result, FollowedResult):
            await self._send({"id": id_, "result": result.result})
            result.follow()
        else:
            await self._send({"id": id_, "result": result})

    async def _send_error(self, id_: MessageId, error: RpcError) -> None:
        await self._send({"id": id_, "error": {"code": error.code, "message": error.message}})

    async def _send(self, message: dict[str, Any]) -> None:
        await self._write(encode_json({**self._head, **message}))
