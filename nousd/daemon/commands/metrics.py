"""The command that reads the figures of this process."""

from __future__ import annotations

from collections import Counter

from nousd import __version__
from nousd.daemon.replies import Reply
from nousd.daemon.services import Core
from nousd.wire import commands
from nousd.wire.commands.subscribe import cursor
from nousd.wire.responses import Metrics


async def get_metrics(core: Core, _command: commands.GetMetrics) -> Reply:
    """Reads how much is open, waits and was written."""
    log = await core.store.figures()
    pending = await core.store.pending_counts()
    return Metrics(
        version=__version__,
        started_at=core.meters.started_at,
        uptime_seconds=core.meters.uptime_seconds,
        cursor=cursor(core.hub.head),
        sessions=core.sessions.count,
        runs=len(core.runs.active()),
        pending_inputs=pending,
        waiting_permissions=core.approvals.requests.count,
        waiting_questions=core.questions.requests.count,
        command_connections=core.meters.command_connections,
        subscribers=core.meters.subscribers,
        confirmers=core.confirmers.count,
        mcp_servers=dict(Counter(server.state for server in core.mcp.summaries())),
        log=log,
        window=core.hub.window,
    )
