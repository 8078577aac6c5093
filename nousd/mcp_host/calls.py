"""Tools of the daemon, listed and called over its sockets: what came of a call is a ``CallEnd``.

Each call has connections of its own, so nothing has to be kept in step with a daemon that was restarted.
What an MCP client is told is not known here.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio

from nousd.client.connection import Connection, connect
from nousd.client.subscription import subscribe
from nousd.errors import ClientError, Refused
from nousd.wire.subscribe import Subscribe

_SESSION_NAME: Final = "mcp"
_EVENTS: Final = ("tool_call_output", "tool_call_completed", "tool_call_denied")
_FOREIGN: Final = "mcp:"
"""How the source of a tool begins that is not ours to pass on."""

Show = Callable[[str], Awaitable[None]]
"""Takes a piece of what a call says while it runs."""


class CallEnd(NamedTuple):
    """What came of a call; ``policy`` is what each source said of it, where it was refused."""

    text: str
    is_error: bool
    policy: dict[str, Any] | None = None


class DaemonTools:
    """The tools of a daemon, in one session.

    Args:
        session_id: where calls are made; None makes a session with the first call.
        names: the tools that are offered; None: all that are active and not another server's.
        ensure: called before the daemon is asked; starts one if that is necessary.
    """

    def __init__(
        self,
        socket_path: Path,
        *,
        session_id: str | None,
        names: Sequence[str] | None,
        ensure: Callable[[], Awaitable[None]],
    ) -> None:
        self._socket_path = socket_path
        self._session_id = session_id
        self._names = names
        self._ensure = ensure
        self._creating = anyio.Lock()

    async def listed(self) -> list[dict[str, Any]]:
        """Returns the tools that are offered, as ``list_tools`` has them. Raises ClientError."""
        await self._ensure()
        wanted = {} if self._session_id is None else {"session_id": self._session_id}
        async with connect(self._socket_path) as daemon:
            tools = (await daemon.request("list_tools", wanted)).payload["tools"]
        return [tool for tool in tools if self._is_offered(tool)]

    def _is_offered(self, tool: Mapping[str, Any]) -> bool:
        if self._names is not None:
            return tool["name"] in self._names
        return bool(tool["active"]) and not tool["source"].startswith(_FOREIGN)

    async def call(self, tool: str, args: Mapping[str, Any], show: Show) -> CallEnd:
        """Calls a tool and waits for its end, however long somebody may have to be asked; cancelling
        stops the call.

        Raises:
            ClientError: the daemon is not there, or went away.
        """
        if tool not in {offered["name"] for offered in await self.listed()}:
            return CallEnd(f"tool_not_found: {tool}", is_error=True)
        async with connect(self._socket_path) as daemon:
            session_id = await self._session(daemon)
            before = (await daemon.request("get_state", {"session_id": session_id})).payload
            asked = {"tool": tool, "args": dict(args), "session_id": session_id}
            call_id = (await daemon.request("call_tool", asked)).payload["tool_call_id"]
            try:
                await self._followed(call_id, before["cursor"], show)
            except anyio.get_cancelled_exc_class():
                await _stop(daemon, call_id)
                raise
            return await _end(daemon, call_id)

    async def _session(self, daemon: Connection) -> str:
        async with self._creating:
            if self._session_id is None:
                # A session that is made becomes the active one, which is other clients' affair.
                active = (await daemon.request("get_state", {})).payload["session_id"]
                made = await daemon.request("new_session", {"name": _SESSION_NAME})
                self._session_id = made.payload["session_id"]
                if active:
                    await daemon.request("switch_session", {"session_id": active})
        return self._session_id

    async def _followed(self, call_id: str, after: str, show: Show) -> None:
        """Returns when the call is over."""
        wanted = Subscribe(after=after, run_id=call_id, types=_EVENTS)
        async with subscribe(self._socket_path, wanted) as events:
            async for event in events:
                if event.type != "tool_call_output":
                    return
                await show(event.payload["delta"])


async def _stop(daemon: Connection, call_id: str) -> None:
    # It may be over, or the daemon be gone: then there is nothing to stop.
    with anyio.CancelScope(shield=True), anyio.move_on_after(5), suppress(ClientError):
        await daemon.request("cancel_tool_call", {"tool_call_id": call_id})


async def _end(daemon: Connection, call_id: str) -> CallEnd:
    call = (await daemon.request("get_tool_call", {"tool_call_id": call_id})).payload["call"]
    if call["executed"]:
        return CallEnd(await _text(daemon, call), is_error=bool(call.get("is_error")))
    wanted = {"session_id": call["session_id"]}
    mode = (await daemon.request("list_permissions", wanted)).payload["mode"]
    policy = {"permission_mode": mode, "sources": call.get("sources", [])}
    reason = call.get("decision", {}).get("reason", "the call was stopped before it began")
    return CallEnd(reason, is_error=True, policy=policy)


async def _text(daemon: Connection, call: Mapping[str, Any]) -> str:
    """Returns what a model would be told; an event repeats only the beginning of what is long."""
    text: str = call.get("result", "")
    if "text_ref" not in call:
        return text
    with suppress(Refused):  # it was deleted meanwhile
        wanted = {"artifact_id": call["text_ref"]}
        return b64decode((await daemon.request("get_artifact", wanted)).payload["data"]).decode()
    return text
