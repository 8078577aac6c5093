"""The command that reads the daemon's metrics."""

from __future__ import annotations

from collections import Counter

from nousd import __version__
from nousd.daemon.replies import Reply
from nousd.daemon.services import Services
from nousd.wire import commands
from nousd.wire.commands.subscribe import cursor
from nousd.wire.responses import Metrics


async def get_metrics(services: Services, _command: commands.GetMetrics) -> Reply:
    """Read the metrics of the daemon."""
    log = await services.store.figures()
    pending = await services.store.pending_counts()
    return Metrics(
        version=__version__,
        started_at=services.meters.started_at,
        uptime_seconds=services.meters.uptime_seconds,
        cursor=cursor(services.hub.head),
        sessions=services.sessions.count,
        runs=len(services.runs.active()),
        pending_inputs=pending,
        waiting_permissions=services.approvals.requests.count,
        waiting_questions=services.questions.requests.count,
        command_connections=services.meters.command_connections,
        subscribers=services.meters.subscribers,
        confirmers=services.approvers.count,
        mcp_servers=dict(Counter(server.state for server in services.mcp.summaries())),
        log=log,
        window=services.hub.window,
    )
