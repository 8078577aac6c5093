"""The table of routes: every row of the bridge, with a file for each kind of resource."""

from __future__ import annotations

from typing import Final

from nousd.bridge.routes import (
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
    sessions,
    streams,
    workspaces,
)
from nousd.bridge.routing.route import Row

ROWS: Final[tuple[Row, ...]] = (
    *health.ROWS,
    *documents.ROWS,
    *metrics.ROWS,
    *sessions.ROWS,
    *contents.ROWS,
    *messages.ROWS,
    *prompts.ROWS,
    *runs.ROWS,
    *streams.ROWS,
    *workspaces.ROWS,
    *permissions.ROWS,
    *questions.ROWS,
    *providers.ROWS,
)
"""All routes."""
