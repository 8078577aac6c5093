"""The MCP servers that an editor passes with a session. Each is a local program or a remote server, so
the user is asked before it is added; the daemon remembers the answer for the session.

The daemon keeps these servers in memory only. Each prompt adds the servers that are missing.
"""

from __future__ import annotations

import math
import re
import shlex
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

import msgspec
import trio

from nousd.acp_server.requests import McpServer, PermissionAnswer
from nousd.acp_server.tool_calls import text_content
from nousd.errors import ClientError, Refused
from nousd.net.jsonrpc import INVALID_PARAMS, JsonRpc, RpcError
from nousd.wire.codec.decoding import decode_json
from nousd.wire.limits import MCP_SERVERS_OF_SESSION_MAX

Payload = Mapping[str, Any]

_TTL_SECONDS: Final = 300
"""How long a server outlives the editor, which renews it regularly: another editor or a terminal may
continue the session.
"""

_RENEWAL_SECONDS: Final = _TTL_SECONDS / 3

_READY_SECONDS: Final = 10.0
"""How long a prompt waits for servers to connect. Later ones are available to the next model call."""

_NAME_CHARS_MAX: Final = 32
_UNUSABLE: Final = re.compile(r"[^a-z0-9]+")
_CONNECTING: Final = "connecting"
_REMOVED: Final = "removed"
_START: Final = "start"
_OPTIONS: Final = (
    {"optionId": _START, "name": "Start it, whenever this session has it", "kind": "allow_always"},
    {"optionId": "leave_out", "name": "Leave it out", "kind": "reject_once"},
)


class EditorServer(NamedTuple):
    """A server of the editor: its name there, and the payload of ``add_mcp``."""

    title: str
    add: dict[str, Any]

    @property
    def name(self) -> str:
        """Its name in the daemon."""
        return str(self.add["name"])


def parse_servers(servers: Iterable[McpServer]) -> tuple[EditorServer, ...]:
    """Return the servers under names that the daemon accepts.

    Raises:
        RpcError: there are too many servers, or the type of one is not supported.
    """
    found: dict[str, EditorServer] = {}
    for server in servers:
        if len(found) == MCP_SERVERS_OF_SESSION_MAX:
            reason = f"a session has at most {MCP_SERVERS_OF_SESSION_MAX} MCP servers"
            raise RpcError(INVALID_PARAMS, reason)
        name = _free_name(server.name, found)
        if server.type == "http":
            headers = {header.name: header.value for header in server.headers}
            transport: dict[str, Any] = {
                "url": server.url,
                **({"headers": headers} if headers else {}),
            }
        elif server.type == "stdio":
            env = {variable.name: variable.value for variable in server.env}
            transport = {"command": [server.command, *server.args], **({"env": env} if env else {})}
        else:
            unknown = f"the MCP server {server.name}: {server.type} is not supported"
            raise RpcError(INVALID_PARAMS, unknown)
        found[name] = EditorServer(
            server.name, {"name": name, "ttl_seconds": _TTL_SECONDS, **transport}
        )
    return tuple(found.values())


def _free_name(title: str, names: Iterable[str]) -> str:
    base = _UNUSABLE.sub("-", title.lower()).strip("-")[:_NAME_CHARS_MAX] or "server"
    number, name = 1, base
    while name in names:
        number += 1
        end = f"-{number}"
        name = f"{base[: _NAME_CHARS_MAX - len(end)]}{end}"
    return name


class SessionServers:
    """The MCP servers that an editor passed with one session.

    Args:
        send: sends a command about the session to the daemon.
        tell: shows a sentence to the user of the session.
    """

    def __init__(
        self,
        rpc: JsonRpc,
        send: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]],
        tell: Callable[[str], Awaitable[None]],
        session_id: str,
        servers: Iterable[EditorServer],
    ) -> None:
        self._rpc = rpc
        self._send = send
        self._tell = tell
        self._session_id = session_id
        self._servers = {server.name: server for server in servers}
        self._states: dict[str, str] = {}
        self._changed = trio.Event()
        self._is_decided = trio.Event()
        self._wait_scope = trio.CancelScope()
        self._waits_skipped = 0
        self._awaited: set[str] = set()
        """Servers for whose connection a prompt waits, once: a server may never answer."""
        self._unreported: set[str] = set()
        """Servers whose failure has not been reported."""
        if not self._servers:
            self._is_decided.set()

    async def begin(self) -> None:
        """Add the servers; ask the user about each that the session does not know. Forget a server that
        the user leaves out or that cannot be added.
        """
        try:
            for server in tuple(self._servers.values()):
                with suppress(ClientError):  # the daemon is gone; the next prompt tries again
                    await self._begin(server)
        finally:
            self._is_decided.set()

    async def renew(self) -> None:
        """Renew the servers regularly, so that they exist as long as the editor is connected."""
        while True:
            await trio.sleep(_RENEWAL_SECONDS)
            for name, server in tuple(self._servers.items()):
                if self._is_decided.is_set() and self._states[name] != _REMOVED:
                    with suppress(ClientError):  # the daemon is gone; the next prompt adds them
                        await self._send("add_mcp", {**server.add, "if_approved": True})

    async def _begin(self, server: EditorServer) -> None:
        try:
            if await self._add_if_approved(server):
                return
            if await self._is_approved(server):
                await self._send("add_mcp", server.add)
                return
            reason = "it was not approved"
        except Refused as refused:
            reason = ": ".join(part for part in (refused.message, refused.cause) if part)
        except (RpcError, msgspec.DecodeError) as error:
            reason = f"the editor could not ask: {error}"
        del self._servers[server.name]
        await self._tell(f"The MCP server {server.title} is left out: {reason}.")

    async def _add_if_approved(self, server: EditorServer) -> bool:
        """Add a server if the user has approved it before; return whether it was added."""
        self._states[server.name] = _CONNECTING
        self._awaited.add(server.name)
        self._unreported.add(server.name)
        try:
            await self._send("add_mcp", {**server.add, "if_approved": True})
        except Refused as refused:
            if refused.message != "mcp_not_approved":
                raise
            return False
        return True

    async def _is_approved(self, server: EditorServer) -> bool:
        call = {
            "toolCallId": f"mcp-{uuid.uuid4().hex}",
            "title": f"Start the MCP server {server.title}",
            "kind": "execute" if "command" in server.add else "fetch",
            "status": "pending",
            "content": text_content(describe_server(server)),
        }
        params = {"sessionId": self._session_id, "toolCall": call, "options": _OPTIONS}
        raw = await self._rpc.call("session/request_permission", params, seconds=math.inf)
        return decode_json(raw, type=PermissionAnswer).outcome.option_id == _START

    async def note(self, status: Payload) -> None:
        """Handle an ``mcp_server_status`` of the session; report an unreachable server to the user."""
        name, state = status["name"], status["state"]
        if name not in self._servers:
            return
        self._states[name] = state
        self._changed.set()
        self._changed = trio.Event()
        if name in self._unreported and status.get("error"):
            self._unreported.remove(name)
            title = self._servers[name].title
            await self._tell(f"The MCP server {title} does not work: {status['error']}.")

    async def ready(self) -> None:
        """Wait until the user has decided about all servers, then a limited time for their connections.

        Raises:
            ClientError: the daemon is gone.
        """
        if not self._servers or self._waits_skipped:
            return
        with trio.CancelScope() as self._wait_scope:
            await self._is_decided.wait()
            listed = (await self._send("list_mcp", {}))["servers"]
            states = {server["name"]: server["state"] for server in listed}
            for name, server in tuple(self._servers.items()):
                if name in states:
                    self._states[name] = states[name]
                elif self._states[name] == _REMOVED:  # by another client
                    del self._servers[name]
                else:  # the daemon was started again
                    await self._begin(server)
            with trio.move_on_after(_READY_SECONDS):
                while self._is_connecting:
                    await self._changed.wait()
            self._awaited.clear()

    @property
    def _is_connecting(self) -> bool:
        awaited = self._awaited & self._servers.keys()
        return any(self._states[name] == _CONNECTING for name in awaited)

    @contextmanager
    def skip_waits(self) -> Iterator[None]:
        """Within the block, prompts do not wait for servers."""
        self._waits_skipped += 1
        self._wait_scope.cancel()
        try:
            yield
        finally:
            self._waits_skipped -= 1

    async def remove(self, excluded: Iterable[EditorServer] = ()) -> None:
        """Remove the servers from the session, except those in ``excluded``."""
        kept_names = {server.name for server in excluded}
        for name in self._servers.keys() - kept_names:
            with suppress(ClientError):  # the server or the daemon is gone already
                await self._send("remove_mcp", {"name": name})


def describe_server(server: EditorServer) -> str:
    """Return the description shown for approval: all but the values of variables and headers."""
    add = server.add
    if "url" in add:
        words, names = _printable(add["url"]), add.get("headers", {})
        return "\n".join((words, *_list_names("with the headers", names)))
    words = " ".join(_printable(shlex.quote(word)) for word in add["command"])
    return "\n".join((words, *_list_names("with the variables", add.get("env", {}))))


def _list_names(title: str, names: Iterable[str]) -> list[str]:
    listed = ", ".join(map(_printable, names))
    return [f"{title} {listed}"] if listed else []


def _printable(text: str) -> str:
    """Return a text with control characters, which could change how others are shown, escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
