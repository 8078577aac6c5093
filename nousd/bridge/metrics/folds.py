"""What a fold over events is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nousd.wire.events import Event

Fold = Callable[[Any, str], None]
"""Counts an event of one type, and when it happened (RFC 3339 UTC)."""

Folds = Mapping[type[Event], Fold]
