"""The open sessions of an editor, independent of the version of the protocol.

An ``Agent`` uses them to answer the requests of one version.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from nousd.acp_server.prompts import FAILED
from nousd.acp_server.requests import ClientCapabilities
from nousd.acp_server.servers import EditorServer
from nousd.acp_server.session import OpenSession
from nousd.client.client import Client
from nousd.errors import ConnectionLost, DaemonUnreachable
from nousd.net.jsonrpc import INVALID_PARAMS, JsonRpc, RpcError

SESSIONS_MAX: Final = 64
"""Maximum open sessions of one editor; each has a connection to the daemon."""

SOURCE: Final = "acp"
"""The source of sessions that an editor creates, and the name of an editor that gives none."""

_DELETE_SECONDS: Final = 30.0
_GLANCE_SECONDS: Final = 0.05


class OpenSessions:
    """The open sessions, by their ids.

    Args:
        rpc: the connection to the editor.
        nursery: runs the tasks that follow the sessions' events.
        ensure: starts the daemon if none runs.
    """

    def __init__(
        self,
        daemon: Client,
        rpc: JsonRpc,
        nursery: trio.Nursery,
        ensure: Callable[[], Awaitable[None]],
    ) -> None:
        self.client_id = SOURCE
        self.abilities = ClientCapabilities()
        self._daemon = daemon
        self._rpc = rpc
        self._nursery = nursery
        self._ensure = ensure
        self._starting = trio.Lock()
        self._open: dict[str, OpenSession] = {}

    async def ask(self, command: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Send a command to the daemon and return the payload of its response. Raises ClientError."""
        return (await self._daemon.request(command, payload)).payload

    async def require_daemon(self) -> None:
        """Start the daemon unless it is running. Raises ClientError."""
        async with self._starting:
            try:
                await self._daemon.request("ping", {})
            except (DaemonUnreachable, ConnectionLost):
                await self._ensure()

    async def new(self, folder: str, servers: tuple[EditorServer, ...]) -> OpenSession:
        """Create a session whose workspace is ``folder``, and open it. Raises RpcError, ClientError."""
        created = await self.ask(
            "new_session", {"workspace": folder, "activate": False, "source": SOURCE}
        )
        return await self._open_session(created["session_id"], servers)

    async def reopen(
        self, session_id: str, servers: tuple[EditorServer, ...], *, folder: str | None
    ) -> OpenSession:
        """Open a session, or reopen it if it is already open.

        Args:
            folder: the workspace that the editor expects.

        Raises:
            RpcError: the session has another workspace, or too many are open.
            ClientError: the daemon has no such session, or cannot be reached.
        """
        open_one = self._open.pop(session_id, None)
        if open_one is not None:
            open_one.close(RpcError(FAILED, "the session was opened again"))
            await open_one.take_back_servers(excluded=servers)
        return await self._open_session(session_id, servers, folder=folder)

    def get(self, session_id: str) -> OpenSession | None:
        """Return a session if it is open. Does not wait, so requests keep their order."""
        session = self._open.get(session_id)
        return None if session is None or session.is_over else session

    async def get_or_open(self, session_id: str) -> OpenSession:
        """Return a session; open it if it is not open, such as after a long outage of the daemon.

        Raises:
            RpcError, ClientError: see ``reopen``.
        """
        session = self.get(session_id)
        if session is None:
            session = await self._open_session(session_id)
            session.begin()
        return session

    async def close(self, session_id: str) -> None:
        """Abort the run of a session, and leave the session."""
        session = self._open.pop(session_id, None)
        if session is not None:
            await session.cancel()
            await session.take_back_servers()
            session.close()

    async def delete(self, session_id: str) -> None:
        """Delete a session permanently. Raises RpcError, ClientError."""
        deletion = {"session_id": session_id, "abort": True}
        with trio.move_on_after(_DELETE_SECONDS):
            while not (await self.ask("delete_session", deletion))["deleted"]:  # noqa: ASYNC110
                # Its run is being aborted; no event reports the end here.
                await trio.sleep(_GLANCE_SECONDS)
            if session := self._open.pop(session_id, None):
                session.close()
            return
        raise RpcError(FAILED, "the session is not deleted: its run does not end")

    def leave(self) -> None:
        """Leave all sessions; their runs continue."""
        for session in self._open.values():
            session.close()

    async def _open_session(
        self, session_id: str, servers: tuple[EditorServer, ...] = (), *, folder: str | None = None
    ) -> OpenSession:
        state = await self.ask("get_state", {"session_id": session_id})
        if folder is not None and resolve_folder(folder) != state["workspace"]:
            raise RpcError(
                INVALID_PARAMS, f"the session works in {state['workspace']}, not in {folder}"
            )
        self._open = {id: each for id, each in self._open.items() if not each.is_over}
        if len(self._open) >= SESSIONS_MAX:
            raise RpcError(FAILED, f"{SESSIONS_MAX} sessions are open: close one first")
        session = self._open[session_id] = OpenSession(
            self._daemon,
            self._rpc,
            state,
            client_id=self.client_id,
            abilities=self.abilities,
            servers=servers,
            require_daemon=self.require_daemon,
        )
        self._nursery.start_soon(session.run)
        return session


def resolve_folder(folder: str) -> str:
    """Return a folder's path as the daemon writes it, with links resolved. Raises RpcError."""
    try:
        return os.path.realpath(folder)
    except ValueError as error:  # a NUL in the path
        raise RpcError(INVALID_PARAMS, f"cwd: {error}") from None
