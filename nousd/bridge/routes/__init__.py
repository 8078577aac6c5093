"""The table of routes: every row of the bridge, a file for each kind of thing."""

from __future__ import annotations

from typing import Final

from nousd.bridge.routes import (
    asking,
    contents,
    documents,
    health,
    messages,
    metrics,
    prompts,
    providers,
    runs,
    session_lists,
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
    *session_lists.ROWS,
    *contents.ROWS,
    *messages.ROWS,
    *prompts.ROWS,
    *runs.ROWS,
    *streams.ROWS,
    *workspaces.ROWS,
    *asking.ROWS,
    *providers.ROWS,
)
"""Every route there is."""
