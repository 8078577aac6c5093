"""MCP servers that belong to one session, which alone has their tools.

A client adds them, for example an editor with the servers of its user, together with keys that must not
be stored. So they are in memory only: they end with the daemon, with their session, or when they are
removed, and the client adds them again. The log has only a hash of each description, which records the
user's approval in that session.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import trio

from nousd.daemon.eventlog.log import CommitHandle
from nousd.daemon.mcp.keeper import Keeper, ServerKey
from nousd.daemon.mcp.specs import parse_session_server, secrets_of, spec_of_session
from nousd.daemon.sessions.live_session import LiveSession
from nousd.daemon.sessions.registry import Sessions
from nousd.daemon.workspace.workspaces import Workspaces
from nousd.errors import CommandRejected
from nousd.machine.session import decisions
from nousd.tools.mcp.server import Surroundings
from nousd.tools.mcp.spec import ServerSpec
from nousd.tools.registry import ToolRegistry
from nousd.wire import commands, events
from nousd.wire.codec.canonical_json import hash_of
from nousd.wire.limits import MCP_SERVERS_OF_SESSION_MAX, MCP_SERVERS_OF_SESSIONS_MAX
from nousd.wire.objects import mcp

_APPROVED_MAX: Final = 64
"""Maximum approvals that a session remembers; beyond that the oldest is forgotten."""

_SECRETS_MAX: Final = 1024
"""Maximum secrets of such servers that a daemon knows and redacts. They are never forgotten."""


class _SessionServer(NamedTuple):
    """A server of a session. It ends at ``until`` (trio's clock) unless it is added again before."""

    spec: ServerSpec
    until: float
    ttl_seconds: float


class SessionServers:
    """All servers that belong to sessions.

    Args:
        surroundings: the environment to run them in; None to run none.
    """

    def __init__(
        self,
        keeper: Keeper,
        surroundings: Surroundings | None,
        tools: ToolRegistry,
        *,
        sessions: Sessions,
        workspaces: Workspaces,
        nursery: trio.Nursery,
    ) -> None:
        self._keeper = keeper
        self._surroundings = surroundings
        self._tools = tools
        self._sessions = sessions
        self._workspaces = workspaces
        self._nursery = nursery
        self._added: dict[str, dict[str, _SessionServer]] = {}
        self._expiring: dict[ServerKey, trio.CancelScope] = {}
        self._secrets: set[str] = set()

    async def add(self, command: commands.AddMcp, session_id: str) -> CommitHandle:
        """Add a server to a session, or replace the one with this name. An unchanged server that has
        not failed keeps running.

        Raises:
            SessionNotFound: the session does not exist.
            InvalidPayload: the server is invalid.
            CommandRejected: ``mcp_not_approved``, ``deletion_scheduled``, ``too_many_mcp_servers``.
        """
        server = parse_session_server(command)
        live = await self._sessions.get(session_id)
        decisions.require_kept(live.state)
        folder = self._workspaces.path_of(live.state)
        approval, approved = _approval_of(server, folder), live.state.mcp_approved
        if command.if_approved and approval not in approved:
            raise CommandRejected("mcp_not_approved", details={"name": server.name})
        spec, secrets = spec_of_session(server), secrets_of(server)
        self._require_room(session_id, server.name, secrets)
        handle = live.decide(_build_approval_events(live, approval))
        added = _make_added(spec, math.inf if command.ttl_seconds is None else command.ttl_seconds)
        self._added[session_id] = {**self._added.pop(session_id, {}), server.name: added}

        def on_resolved(handle: CommitHandle) -> None:
            if handle.failure is None:
                self._keep(live, added)
            else:
                self._forget(session_id, added)

        handle.when_resolved(on_resolved)
        self._learn(secrets)
        return handle

    def remove(self, session_id: str, name: str) -> None:
        """Remove a session's server.

        Raises:
            CommandRejected: ``mcp_server_not_found``.
        """
        self._forget(session_id, self._get_added(session_id, name))
        self._keeper.take_away(ServerKey(session_id, name))

    async def restart(self, session_id: str, name: str) -> None:
        """Reconnect to a session's server at once.

        Raises:
            SessionNotFound: the session does not exist.
            CommandRejected: ``mcp_server_not_found``.
        """
        live = await self._sessions.get(session_id)
        self._keep(live, self._get_added(session_id, name), restart=True)

    def end(self, session_id: str) -> None:
        """End the servers of a session that is deleted."""
        for name in self._added.pop(session_id, ()):
            self._keeper.drop(ServerKey(session_id, name))
            self._stop_expiring(ServerKey(session_id, name))
        self._tools.disown(session_id)

    # --- room ------------------------------------------------------------------------------------

    def _require_room(self, session_id: str, name: str, secrets: frozenset[str]) -> None:
        """Make room for a server: if necessary, remove the servers of the session without a run that
        added its last server the longest time ago.
        """
        own = self._added.get(session_id, {})
        others = len(own) - (name in own)
        if others >= MCP_SERVERS_OF_SESSION_MAX:
            raise _too_many(MCP_SERVERS_OF_SESSION_MAX)
        if len(self._secrets | secrets) > _SECRETS_MAX:
            raise CommandRejected(
                "too_many_mcp_servers",
                details={"limit": _SECRETS_MAX},
                cause="the daemon knows too many of their keys; restart it",
            )
        count = sum(map(len, self._added.values())) - (name in own)
        if count < MCP_SERVERS_OF_SESSIONS_MAX:
            return
        for other in self._added:
            if other != session_id and not self._is_working(other):
                for each in list(self._added[other]):
                    self.remove(other, each)
                return
        raise _too_many(MCP_SERVERS_OF_SESSIONS_MAX)

    def _is_working(self, session_id: str) -> bool:
        state = self._sessions.in_memory(session_id)
        return state is not None and state.run is not None

    # --- running servers -------------------------------------------------------------------------

    def _is(self, session_id: str, added: _SessionServer) -> bool:
        """Return whether a server was neither removed nor added again since."""
        return self._added.get(session_id, {}).get(added.spec.name) is added

    def _get_added(self, session_id: str, name: str) -> _SessionServer:
        added = self._added.get(session_id, {}).get(name)
        if added is None:
            raise CommandRejected("mcp_server_not_found", details={"name": name})
        return added

    async def _expire(self, key: ServerKey, scope: trio.CancelScope) -> None:
        """Remove a server that is not added again in time, once its session has no run."""
        session_id, name = key
        with scope:
            while True:
                added = self._get_added(session_id, name)
                if added.until > trio.current_time():
                    await trio.sleep_until(added.until)
                elif self._is_working(session_id):
                    await trio.sleep(added.ttl_seconds)
                else:
                    self.remove(session_id, name)
                    return

    def _stop_expiring(self, key: ServerKey) -> None:
        scope = self._expiring.pop(key, None)
        if scope is not None:
            scope.cancel()

    def _keep(self, live: LiveSession, added: _SessionServer, *, restart: bool = False) -> None:
        """Keep a server alive, unless it was removed or replaced meanwhile, or runs already."""
        spec = added.spec
        key = ServerKey(live.session_id, spec.name)
        if self._surroundings is None or not self._is(live.session_id, added):
            return
        if added.until < math.inf and key not in self._expiring:
            scope = self._expiring[key] = trio.CancelScope()
            self._nursery.start_soon(self._expire, key, scope)
        kept = self._keeper.get(key)
        is_unchanged = kept is not None and kept.server.spec == spec
        if (
            kept is not None
            and is_unchanged
            and kept.server.status.state != "failed"
            and not restart
        ):
            return
        folder = Path(self._workspaces.path_of(live.state))
        surroundings = msgspec.structs.replace(self._surroundings, workdir=folder)
        self._keeper.keep(key, spec, self._tools.ensure_registry(live.session_id), surroundings)

    def _forget(self, session_id: str, added: _SessionServer) -> None:
        own = self._added.get(session_id, {})
        if self._is(session_id, added):
            del own[added.spec.name]
            self._stop_expiring(ServerKey(session_id, added.spec.name))
        if not own:
            self._added.pop(session_id, None)
            self._tools.disown(session_id)

    def _learn(self, secrets: frozenset[str]) -> None:
        assert self._surroundings is not None
        for secret in secrets - self._secrets:
            self._surroundings.secret(secret)
        self._secrets |= secrets


def _make_added(spec: ServerSpec, ttl_seconds: float) -> _SessionServer:
    return _SessionServer(spec, trio.current_time() + ttl_seconds, ttl_seconds)


def _too_many(limit: int) -> CommandRejected:
    return CommandRejected("too_many_mcp_servers", details={"limit": limit})


def _approval_of(server: mcp.McpServer, folder: str) -> str:
    """Return a hash of the facts that the user approves: the command or URL, the directory, and the
    names of variables and headers.

    Args:
        folder: the session's workspace, to which a relative ``cwd`` refers.
    """
    approved_facts = {
        "command": server.command or (),
        "url": server.url or "",
        "folder": str(Path(folder, server.cwd or "")),
        "env": sorted(server.env or {}),
        "headers": sorted(server.headers or {}),
    }
    return hash_of(approved_facts)


def _build_approval_events(live: LiveSession, approval: str) -> tuple[events.Event, ...]:
    """Return the event that records an approval; none if it is already recorded."""
    approved = live.state.mcp_approved
    if approval in approved:
        return ()
    kept = (*approved, approval)[-_APPROVED_MAX:]
    return (events.SessionUpdated(session_id=live.session_id, mcp_approved=kept),)
