"""The table of routes: every row of the bridge, a file for each kind of thing."""

from __future__ import annotations

from typing import Final

from nousd.bridge.routes import health, sessions, streams
from nousd.bridge.table import Row

ROWS: Final[tuple[Row, ...]] = (*health.ROWS, *sessions.ROWS, *streams.ROWS)
"""Every route there is."""
