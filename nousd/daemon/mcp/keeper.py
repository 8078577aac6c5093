"""Keeps MCP servers alive and logs their status.

``servers`` and ``session_servers`` decide which servers exist.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

import trio
from msgspec import UNSET

from nousd.daemon import error_boundary
from nousd.daemon.eventlog.log import Log
from nousd.tools.mcp.server import McpServer, Status, Surroundings
from nousd.tools.mcp.spec import ServerSpec
from nousd.tools.registry import ToolRegistry
from nousd.wire import events
from nousd.wire.codec.unset import or_unset


class ServerKey(NamedTuple):
    """The key of a server: its session, or "" for a server of the daemon, and its name there."""

    session_id: str
    name: str


class KeptServer(NamedTuple):
    """A server that is kept alive; ``scope`` stops it, and ``ended`` is set when it has ended."""

    key: ServerKey
    server: McpServer
    scope: trio.CancelScope
    ended: trio.Event


class Keeper:
    """Keeps servers alive, one at a time for each key."""

    def __init__(self, log: Log, nursery: trio.Nursery) -> None:
        self._log = log
        self._nursery = nursery
        self._servers: dict[ServerKey, KeptServer] = {}
        self._ending: dict[ServerKey, KeptServer] = {}

    def get(self, key: ServerKey) -> KeptServer | None:
        """Return a server that is kept alive."""
        return self._servers.get(key)

    @property
    def all(self) -> tuple[KeptServer, ...]:
        """All servers, in the order in which they were started."""
        return tuple(self._servers.values())

    def keep(
        self, key: ServerKey, spec: ServerSpec, tools: ToolRegistry, surroundings: Surroundings
    ) -> None:
        """Keep a server alive, replacing the one under this key.

        Args:
            tools: the registry that receives the server's tools.
        """
        self.drop(key)
        before = self._ending.get(key)
        server = McpServer(spec, tools, surroundings, partial(self._tell, key))
        kept = self._servers[key] = KeptServer(key, server, trio.CancelScope(), trio.Event())
        self._nursery.start_soon(self._run, kept, before)

    def drop(self, key: ServerKey) -> KeptServer | None:
        """Stop keeping a server."""
        kept = self._servers.pop(key, None)
        if kept is not None:
            kept.scope.cancel()
            self._ending[key] = kept
        return kept

    def take_away(self, key: ServerKey) -> None:
        """Stop keeping a server, and log its removal."""
        kept = self.drop(key)
        if kept is not None:
            status = Status(restarts=kept.server.status.restarts)
            self._tell(key, kept.server.spec, status, "removed")

    async def _run(self, kept: KeptServer, before: KeptServer | None) -> None:
        """Run a server once the previous one under its key has ended: otherwise the previous one would
        remove the new server's tools.
        """
        server, key = kept.server, kept.key
        try:
            if before is not None:
                await before.ended.wait()
            with kept.scope:
                await trio.lowlevel.checkpoint()
                self._tell(key, server.spec, server.status)
                failure = await error_boundary.run_contained(
                    server.run, f"the mcp server {key.name}"
                )
                if failure is not None:
                    server.give_up(str(failure))
        finally:
            kept.ended.set()
            if self._ending.get(key) is kept:
                del self._ending[key]

    def _tell(
        self,
        key: ServerKey,
        spec: ServerSpec,
        status: Status,
        state: Literal["removed"] | None = None,
    ) -> None:
        event = events.McpServerStatus(
            session_id=key.session_id,
            name=key.name,
            transport=spec.transport,
            state=state or status.state,
            restarts=status.restarts,
            tools=status.tools,
            error=or_unset(status.error or None),
            protocol_version=or_unset(status.protocol_version or None),
            left_out=status.left_out or UNSET,
        )
        self._log.submit(self._log.encode((event,)))
