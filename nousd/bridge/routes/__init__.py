"""The route table of the bridge; the rows of each kind of resource have a file of their own."""

from __future__ import annotations

from typing import Final

from nousd.bridge.routes import (
    auth,
    contents,
    documents,
    health,
    messages,
    metrics,
    permissions,
    prompts,
    providers,
    questions,
    runs,
    session_upkeep,
    sessions,
    streams,
    workspaces,
)
from nousd.bridge.routing.route import Row

ROWS: Final[tuple[Row, ...]] = (
    *health.routes,
    *auth.routes,
    *documents.routes,
    *metrics.routes,
    *sessions.routes,
    *session_upkeep.routes,
    *contents.routes,
    *messages.routes,
    *prompts.routes,
    *runs.routes,
    *streams.routes,
    *workspaces.routes,
    *permissions.routes,
    *questions.routes,
    *providers.routes,
)
"""All routes."""
