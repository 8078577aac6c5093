"""The MCP servers of one daemon: those of the settings, those that clients added, and those of a
trusted project. Of servers with the same name, the first in this order counts.

``tools.mcp`` implements a server, and ``keeper`` keeps it alive. This module decides which servers exist
for all sessions, ``session_servers`` which exist for one session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, get_args

import trio
from msgspec import UNSET

from nousd.daemon import error_boundary
from nousd.daemon.eventlog.log import CommitHandle, Log
from nousd.daemon.mcp.keeper import Keeper, KeptServer, ServerKey
from nousd.daemon.mcp.session_servers import SessionServers
from nousd.daemon.mcp.specs import parse_server, spec_of, specs_of_project
from nousd.daemon.sessions.registry import Sessions
from nousd.daemon.workspace.project import Project
from nousd.daemon.workspace.workspaces import Workspaces
from nousd.errors import CommandRejected, ConfigError
from nousd.tools.mcp.server import Surroundings, require_sdk
from nousd.tools.mcp.spec import ServerSpec
from nousd.tools.registry import ToolRegistry
from nousd.wire import commands
from nousd.wire.codec.unset import or_unset
from nousd.wire.limits import MCP_SERVERS_MAX
from nousd.wire.objects import mcp

Origin = Literal["config", "add_mcp", "project"]
"""The source of a server's description."""


class McpServers:
    """All servers. ``of_sessions`` are those that belong to one session each.

    Args:
        configured: the servers of the settings; ``disabled`` are those not to run.
        surroundings: the environment to run them in; None to run none (a replay).
    """

    def __init__(
        self,
        *,
        configured: Sequence[ServerSpec],
        disabled: Sequence[ServerSpec],
        surroundings: Surroundings | None,
        tools: ToolRegistry,
        project: Project,
        sessions: Sessions,
        workspaces: Workspaces,
        log: Log,
        nursery: trio.Nursery,
    ) -> None:
        self._configured = {spec.name: spec for spec in configured}
        self._disabled = {spec.name: spec for spec in disabled}
        self._surroundings = surroundings
        self._tools = tools
        self._project = project
        self._sessions = sessions
        self._nursery = nursery
        self._keeper = Keeper(log, nursery)
        self.of_sessions = SessionServers(
            self._keeper,
            surroundings,
            tools,
            sessions=sessions,
            workspaces=workspaces,
            nursery=nursery,
        )
        self._of_project: dict[str, ServerSpec] = {}
        self._reading = trio.Lock()

    def start(self) -> None:
        """Connect to all servers."""
        if self._surroundings is None:
            return
        for spec in self._configured.values():
            self._keep(spec)
        for server in self._sessions.defaults.mcp_servers:
            if server.name not in self._names_of_the_settings:
                self._keep(spec_of(server))
        self.reread_project()

    def reread_project(self) -> None:
        """Read the project's servers again, if the project is trusted."""
        if self._surroundings is not None:
            read = partial(
                error_boundary.run_contained, self._read_project, "the MCP servers of a project"
            )
            self._nursery.start_soon(read)

    async def _read_project(self) -> None:
        surroundings = self._surroundings
        assert surroundings is not None
        async with self._reading:
            settings = await self._project.read_effective()
            added_names = {server.name for server in self._sessions.defaults.mcp_servers}
            taken = self._names_of_the_settings | added_names
            specs = specs_of_project(settings, surroundings.secret)
            project_specs = {spec.name: spec for spec in specs if spec.name not in taken}
            for name in self._of_project.keys() - project_specs.keys() - taken:
                self._keeper.take_away(_key(name))
            for name, spec in project_specs.items():
                if self._of_project.get(name) != spec or self._keeper.get(_key(name)) is None:
                    self._keep(spec)
            self._of_project = project_specs

    @property
    def _names_of_the_settings(self) -> set[str]:
        return {*self._configured, *self._disabled}

    # --- commands --------------------------------------------------------------------------------

    def require_available(self) -> None:
        """Raise unless servers can run.

        Raises:
            CommandRejected: ``mcp_not_available``, ``mcp_not_installed``.
        """
        if self._surroundings is None:
            raise CommandRejected("mcp_not_available")
        try:
            require_sdk()
        except ConfigError as error:
            raise CommandRejected("mcp_not_installed", cause=str(error)) from None

    def add(self, command: commands.AddMcp) -> CommitHandle:
        """Add a server permanently, or replace an added one; it is connected once that is committed.

        Raises:
            InvalidPayload: the server is invalid, or seems to contain a secret.
            CommandRejected: ``mcp_server_is_configured``, ``too_many_mcp_servers``.
        """
        server = parse_server(command)
        if server.name in self._names_of_the_settings:
            raise CommandRejected("mcp_server_is_configured", details={"name": server.name})
        others = self._list_added_without(server.name)
        if len(others) >= MCP_SERVERS_MAX:
            raise CommandRejected("too_many_mcp_servers", details={"limit": MCP_SERVERS_MAX})
        handle = self._sessions.update(None, mcp_servers=(*others, server))
        self._when_committed(handle, partial(self._keep, spec_of(server)))
        return handle

    def remove(self, name: str) -> CommitHandle:
        """Remove an added server.

        Raises:
            CommandRejected: ``mcp_server_is_configured``, ``mcp_server_not_found``.
        """
        if name in self._names_of_the_settings:
            raise CommandRejected("mcp_server_is_configured", details={"name": name})
        others = self._list_added_without(name)
        if len(others) == len(self._sessions.defaults.mcp_servers):
            raise CommandRejected("mcp_server_not_found", details={"name": name})
        handle = self._sessions.update(None, mcp_servers=others)

        def on_removed() -> None:
            self._keeper.take_away(_key(name))
            self.reread_project()

        self._when_committed(handle, on_removed)
        return handle

    def restart(self, name: str) -> None:
        """Reconnect to a server at once.

        Raises:
            CommandRejected: ``mcp_server_not_found``.
        """
        kept = self._keeper.get(_key(name))
        if kept is None:
            raise CommandRejected("mcp_server_not_found", details={"name": name})
        self._keep(kept.server.spec)

    def summaries(self) -> tuple[mcp.McpServerSummary, ...]:
        """Return the servers and their states, those of sessions last."""
        kept = [_summary(kept, self._origin(kept.key)) for kept in self._keeper.all]
        disabled = [
            mcp.McpServerSummary(
                name=spec.name,
                origin="config",
                transport=spec.transport,
                state="disabled",
                restarts=0,
                tools=(),
            )
            for spec in self._disabled.values()
        ]
        order = get_args(Origin)

        def place(server: mcp.McpServerSummary) -> tuple[str, int, str]:
            return server.session_id or "", order.index(server.origin), server.name

        return tuple(sorted((*kept, *disabled), key=place))

    # --- running servers -------------------------------------------------------------------------

    def _origin(self, key: ServerKey) -> Origin:
        if key.session_id:
            return "add_mcp"
        if key.name in self._configured:
            return "config"
        added_names = {server.name for server in self._sessions.defaults.mcp_servers}
        return "add_mcp" if key.name in added_names else "project"

    def _list_added_without(self, name: str) -> tuple[mcp.McpServer, ...]:
        added = self._sessions.defaults.mcp_servers
        return tuple(server for server in added if server.name != name)

    @staticmethod
    def _when_committed(handle: CommitHandle, call: Callable[[], object]) -> None:
        def on_resolved(handle: CommitHandle) -> None:
            if handle.failure is None:
                call()

        handle.when_resolved(on_resolved)

    def _keep(self, spec: ServerSpec) -> None:
        """Keep a server alive, replacing one of the same name."""
        assert self._surroundings is not None
        self._keeper.keep(_key(spec.name), spec, self._tools, self._surroundings)


def _key(name: str) -> ServerKey:
    """Return the key of a server of the daemon."""
    return ServerKey("", name)


def _summary(kept: KeptServer, origin: Origin) -> mcp.McpServerSummary:
    spec, status = kept.server.spec, kept.server.status
    return mcp.McpServerSummary(
        name=kept.key.name,
        session_id=or_unset(kept.key.session_id or None),
        origin=origin,
        transport=spec.transport,
        state=status.state,
        restarts=status.restarts,
        tools=status.tools,
        command=spec.command or UNSET,
        url=or_unset(spec.url or None),
        error=or_unset(status.error or None),
        protocol_version=or_unset(status.protocol_version or None),
        left_out=status.left_out or UNSET,
    )
