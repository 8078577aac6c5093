"""The agent that an editor talks to: answers the requests of version 1 of the protocol with the open
sessions of the editor.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
import trio
from msgspec import Raw

from nousd import __version__
from nousd.acp_server import requests
from nousd.acp_server.open_sessions import OpenSessions, resolve_folder
from nousd.acp_server.prompts import FAILED
from nousd.acp_server.servers import EditorServer, parse_servers
from nousd.acp_server.session import OpenSession
from nousd.client.client import Client
from nousd.errors import AgentFailed, ClientError, DaemonUnreachable, Refused
from nousd.net.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    FollowedResult,
    JsonRpc,
    RpcError,
)
from nousd.wire.codec.decoding import decode_json
from nousd.wire.codec.envelope import encode_json, scrub

PROTOCOL_VERSION: Final = 1

_NOT_FOUND: Final = -32002
_PAGE_ROWS: Final = 50
_NAME_CHARS_MAX: Final = 256

_CODES: Final = {"session_not_found": _NOT_FOUND, "invalid_payload": INVALID_PARAMS}
"""Code of a refusal -> code of the JSON-RPC error; ``FAILED`` for all others."""

_NO_FOLDERS: Final = "additionalDirectories is not supported: a session has one folder"

P = TypeVar("P")


class Agent:
    """Answers an editor; implements ``Peer``.

    Args:
        nursery: runs the tasks of open sessions.
        ensure: starts the daemon if none runs.
    """

    def __init__(
        self,
        daemon: Client,
        write: Callable[[bytes], Awaitable[None]],
        nursery: trio.Nursery,
        ensure: Callable[[], Awaitable[None]],
    ) -> None:
        self.rpc = JsonRpc(write, self, nursery, withdrawal="$/cancel_request")
        self._write = write
        self._nursery = nursery
        self._sessions = OpenSessions(daemon, self.rpc, nursery, ensure)
        self._methods: dict[str, Callable[[Raw], Awaitable[Any]]] = {
            "initialize": self._initialize,
            "authenticate": self._authenticate,
            "session/new": self._new,
            "session/load": self._load,
            "session/resume": self._resume,
            "session/list": self._list,
            "session/close": self._close,
            "session/prompt": self._prompt,
            "session/set_mode": self._set_mode,
            "session/set_config_option": self._set_option,
            "session/delete": self._delete,
        }

    # --- the connection ------------------------------------------------------------------------

    async def answer(self, method: str, params: Raw) -> Any:
        """Answer a request of the editor."""
        handler = self._methods.get(method)
        if handler is None:
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {method}")
        try:
            return await self._handle(handler, params)
        except Refused as refused:
            raise RpcError(_CODES.get(refused.code, FAILED), _sentence(refused)) from None
        except ClientError as error:
            raise RpcError(FAILED, str(error)) from None

    async def _handle(self, handler: Callable[[Raw], Awaitable[Any]], params: Raw) -> Any:
        try:
            return await handler(params)
        except DaemonUnreachable:
            # The daemon has ended since; any other client would start it too.
            await self._sessions.require_daemon()
            return await handler(params)

    async def take_notification(self, method: str, params: Raw) -> None:
        """Handle a notification of the editor; ignore it if it is unknown or cannot be decoded."""
        with suppress(msgspec.DecodeError, UnicodeError):
            if method == "session/cancel":
                request = _decode(params, requests.OfSession)
                if session := self._sessions.get(request.session_id):
                    await self._nursery.start(session.cancel)
            elif method == "$/cancel_request":
                self.rpc.withdraw(params)

    async def take_unknown(self, line: bytes) -> None:
        """Answer a line that is not a message with an error; ignore a response to an unknown request."""
        try:
            message = decode_json(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            await self.refuse_line(f"the line is no JSON: {error}", id=_id_in(line))
            return
        if not isinstance(message, dict) or message.keys().isdisjoint({"result", "error"}):
            await self.refuse_line("the line is no message of JSON-RPC", INVALID_REQUEST)

    async def refuse_line(
        self, reason: str, code: int = PARSE_ERROR, *, id: int | str | None = None
    ) -> None:
        """Answer a line with an error, under its id if it has one."""
        error = {"code": code, "message": reason}
        await self._write(encode_json({"jsonrpc": "2.0", "id": id, "error": error}))

    def end(self, failure: AgentFailed) -> None:
        """Raise ``failure``. This does not happen: the connection ends with the editor's output."""
        raise failure

    def close(self) -> None:
        """Leave all sessions; their runs continue."""
        self._sessions.leave()

    async def _initialize(self, params: Raw) -> dict[str, Any]:
        request = _decode(params, requests.Initialize)
        self._sessions.abilities = request.client_capabilities
        if request.client_info is not None and request.client_info.name:
            self._sessions.client_id = request.client_info.name[:_NAME_CHARS_MAX]
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentInfo": {"name": "nousd", "title": "nousd", "version": __version__},
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
                "mcpCapabilities": {"http": True, "sse": False},
                "sessionCapabilities": {"list": {}, "resume": {}, "close": {}, "delete": {}},
            },
            "authMethods": [],
        }

    async def _authenticate(self, _params: Raw) -> dict[str, Any]:
        return {}

    # --- sessions ------------------------------------------------------------------------------

    async def _new(self, params: Raw) -> FollowedResult:
        request = _decode(params, requests.NewSession)
        session = await self._sessions.new(request.cwd, _servers_of(request))
        return await self._begin_session(session, sessionId=session.id)

    async def _load(self, params: Raw) -> FollowedResult:
        session = await self._reopen(params)
        await session.replay()
        return await self._begin_session(session)

    async def _resume(self, params: Raw) -> FollowedResult:
        return await self._begin_session(await self._reopen(params))

    async def _reopen(self, params: Raw) -> OpenSession:
        request = _decode(params, requests.OldSession)
        return await self._sessions.reopen(
            request.session_id, _servers_of(request), folder=request.cwd
        )

    async def _begin_session(self, session: OpenSession, **keys: str) -> FollowedResult:
        """Return the answer to a request that opens a session; the session's updates follow it."""
        options = await session.options()
        result = {**keys, "modes": session.modes, "configOptions": options}
        return FollowedResult(result, session.begin)

    async def _list(self, params: Raw) -> dict[str, Any]:
        request = _decode(params, requests.ListSessions)
        folder = None if request.cwd is None else resolve_folder(request.cwd)
        filters = {"workspace": folder, "before": request.cursor}
        query = {key: value for key, value in filters.items() if value is not None}
        page = await self._sessions.ask(
            "list_sessions", {"limit": _PAGE_ROWS, "archived": False, **query}
        )
        rows = page["sessions"]
        more = {"nextCursor": rows[-1]["session_id"]} if page["has_more"] and rows else {}
        return {"sessions": [_info(row) for row in rows], **more}

    async def _close(self, params: Raw) -> dict[str, Any]:
        await self._sessions.close(_decode(params, requests.OfSession).session_id)
        return {}

    async def _delete(self, params: Raw) -> dict[str, Any]:
        await self._sessions.delete(_decode(params, requests.OfSession).session_id)
        return {}

    async def _set_option(self, params: Raw) -> dict[str, Any]:
        request = _decode(params, requests.SetOption)
        session = await self._sessions.get_or_open(request.session_id)
        return {"configOptions": await session.set_option(request.config_id, request.value)}

    async def _set_mode(self, params: Raw) -> dict[str, Any]:
        request = _decode(params, requests.SetMode)
        session = await self._sessions.get_or_open(request.session_id)
        await session.set_mode(request.mode_id)
        return {}

    async def _prompt(self, params: Raw) -> dict[str, Any]:
        request = _decode(params, requests.Prompt)
        # Do not wait if the session is open: prompts and cancellations keep their order.
        session = self._sessions.get(request.session_id)
        if session is None:
            session = await self._sessions.get_or_open(request.session_id)
        async with session.prompt(request.prompt) as prompt:
            return {"stopReason": await prompt.wait_end()}


def _decode(params: Raw, struct: type[P]) -> P:
    return decode_json(params, type=struct)


def _id_in(line: bytes) -> int | str | None:
    """Return the id of a request that only a lenient parser accepts. A browser's JSON may contain a lone
    surrogate, which must not leave the editor without an answer.
    """
    with suppress(ValueError, RecursionError):
        message = json.loads(line)
        if isinstance(message, dict) and isinstance(message.get("id"), int | str):
            return scrub(message["id"]) if isinstance(message["id"], str) else message["id"]
    return None


def _servers_of(request: requests.NewSession) -> tuple[EditorServer, ...]:
    """Return the MCP servers in a request that opens a session. Raises RpcError."""
    if request.additional_directories:
        raise RpcError(INVALID_PARAMS, _NO_FOLDERS)
    return parse_servers(request.mcp_servers)


def _info(row: dict[str, Any]) -> dict[str, Any]:
    title = row.get("name") or row.get("title")
    named = {"title": title} if title else {}
    return {
        "sessionId": row["session_id"],
        "cwd": row["workspace"],
        "updatedAt": row["updated_at"],
        **named,
    }


def _sentence(refused: Refused) -> str:
    return f"{refused.message}: {refused.cause}" if refused.cause else refused.message
