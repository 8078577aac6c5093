"""Listing and calling the daemon's tools over v1; the outcome of a call is a ``CallEnd``.

Each call opens its own connections, so that no state depends on a daemon that may be restarted.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import anyio
import anyio.lowlevel

from nousd.client.connection import Connection, connect
from nousd.client.dial import Where
from nousd.client.subscription import subscribe
from nousd.errors import ClientError, Refused
from nousd.wire.commands.subscribe import Subscribe

_STOP_SECONDS: Final = 5.0

_SESSION_NAME: Final = "mcp"
_SOURCE: Final = "mcp"
_EVENTS: Final = ("tool_call_output", "tool_call_completed", "tool_call_denied")
_MCP_PREFIX: Final = "mcp:"
"""The prefix in the source of a tool that comes from another MCP server and is not served."""

Show = Callable[[str], Awaitable[None]]
"""Receives a piece of a call's output while the call runs."""


class CallEnd(NamedTuple):
    """The outcome of a call; if it was refused, ``policy`` has the opinion of each policy source."""

    text: str
    is_error: bool
    policy: dict[str, Any] | None = None


class CallSession:
    """The session of the calls: a given one, or one that the first call creates.

    Args:
        session_id: the id of the given session.
        workspace: the absolute path of the workspace of a new session; None for the daemon's own.
    """

    def __init__(self, session_id: str | None = None, workspace: str | None = None) -> None:
        self._given_id = session_id
        self._workspace = workspace
        self._created_id: str | None = None
        self._creating = anyio.Lock()

    @property
    def known(self) -> str | None:
        """The id of the session; None if it has not been created yet."""
        return self._given_id or self._created_id

    async def state(self, daemon: Connection) -> dict[str, Any]:
        """Return the state of the session; create it if necessary, also if it was deleted meanwhile.

        Raises:
            ClientError: the daemon disconnected, or the given session does not exist.
        """
        async with self._creating:
            state = None if self.known is None else await self.of_known(daemon, "get_state")
            if state is None:
                # The active session belongs to other clients.
                settings: dict[str, Any] = {"name": _SESSION_NAME, "source": _SOURCE}
                settings |= {"activate": False, "workspace": self._workspace}
                created = await daemon.request("new_session", settings)
                self._created_id = created.payload["session_id"]
                state = await self.of_known(daemon, "get_state")
                assert state is not None
        return state

    async def of_known(
        self, daemon: Connection, command: str, **keys: str
    ) -> dict[str, Any] | None:
        """Return the response to a command about the session; None if the session was created here and
        has been deleted.
        """
        try:
            return (await daemon.request(command, {"session_id": self.known, **keys})).payload
        except Refused as refused:
            if self._given_id is not None or refused.code != "session_not_found":
                raise
            return None


class DaemonTools:
    """The tools of a daemon, in one session.

    Args:
        names: the names of the served tools; None for all active ones that are not from an MCP server.
        ensure: called before each use of the daemon; starts a daemon if necessary.
    """

    def __init__(
        self,
        daemon: Where,
        *,
        session: CallSession,
        names: Sequence[str] | None,
        ensure: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint,
    ) -> None:
        self._daemon = daemon
        self._session = session
        self._names = names
        self._ensure = ensure

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return the served tools, in the form of v1's ``list_tools``. Raise ClientError."""
        await self._ensure()
        async with connect(self._daemon) as daemon:
            page = await self._page(daemon)
            tools = page["tools"]
            while "has_more" in page and page["tools"]:
                page = await self._page(daemon, after=page["tools"][-1]["name"])
                tools += page["tools"]
        return [tool for tool in tools if self._is_offered(tool)]

    async def _page(self, daemon: Connection, **keys: str) -> dict[str, Any]:
        page = None
        if self._session.known is not None:
            page = await self._session.of_known(daemon, "list_tools", **keys)
        return (await daemon.request("list_tools", keys)).payload if page is None else page

    def _is_offered(self, tool: Mapping[str, Any]) -> bool:
        if self._names is not None:
            return tool["name"] in self._names
        return bool(tool["active"]) and not tool["source"].startswith(_MCP_PREFIX)

    async def call(self, tool: str, args: Mapping[str, Any], show: Show) -> CallEnd:
        """Call a tool and wait for its end, however long an approval takes. If a cancellation or an
        error of ``show`` ends the wait, the call is stopped.

        Raises:
            ClientError: no daemon listens, or it disconnected.
        """
        if tool not in {offered["name"] for offered in await self.list_tools()}:
            return CallEnd(f"tool_not_found: {tool}", is_error=True)
        async with connect(self._daemon) as daemon:
            state = await self._session.state(daemon)
            payload = {"tool": tool, "args": dict(args), "session_id": state["session_id"]}
            # Nothing could stop a call whose id did not arrive.
            with anyio.CancelScope(shield=True):
                call_id = (await daemon.request("call_tool", payload)).payload["tool_call_id"]
            is_over = False
            try:
                await self._follow(call_id, state["cursor"], show)
                is_over = True
            finally:
                if not is_over:
                    await _stop(daemon, call_id)
            return await _end(daemon, call_id)

    async def _follow(self, call_id: str, after: str, show: Show) -> None:
        """Pass the call's output to ``show``, and return once the call has ended."""
        query = Subscribe(after=after, run_id=call_id, types=_EVENTS)
        async with subscribe(self._daemon, query) as events:
            async for event in events:
                if event.type != "tool_call_output":
                    return
                await show(event.payload["delta"])


async def _stop(daemon: Connection, call_id: str) -> None:
    # If the call has ended, or the daemon has disconnected, there is nothing to stop.
    with anyio.move_on_after(_STOP_SECONDS, shield=True), suppress(ClientError):
        await daemon.request("cancel_tool_call", {"tool_call_id": call_id})


async def _end(daemon: Connection, call_id: str) -> CallEnd:
    call = (await daemon.request("get_tool_call", {"tool_call_id": call_id})).payload["call"]
    if call["executed"]:
        return CallEnd(await _text(daemon, call), is_error=bool(call.get("is_error")))
    query = {"session_id": call["session_id"]}
    mode = (await daemon.request("list_permissions", query)).payload["mode"]
    policy = {"permission_mode": mode, "sources": call.get("sources", [])}
    reason = call.get("decision", {}).get("reason", "the call was stopped before it began")
    return CallEnd(reason, is_error=True, policy=policy)


async def _text(daemon: Connection, call: Mapping[str, Any]) -> str:
    """Return the whole result; the record of the call has only the beginning of a long one."""
    text: str = call.get("result", "")
    if "text_ref" not in call:
        return text
    with suppress(Refused):  # deleted meanwhile
        query = {"artifact_id": call["text_ref"]}
        return b64decode((await daemon.request("get_artifact", query)).payload["data"]).decode()
    return text
