"""Results of command handlers: a response now, or one that waits for its commit."""

from __future__ import annotations

from typing import Any

import msgspec

from nousd.daemon.eventlog.log import CommitHandle
from nousd.wire.responses import Response


class Deferred(msgspec.Struct, frozen=True):
    """An answer that is true once ``handle`` is committed, and is queued in that very moment."""

    handle: CommitHandle
    payload: Response


class Plain(msgspec.Struct, frozen=True):
    """An answer whose payload is no struct of ours."""

    type: str
    payload: Any


Reply = Response | Deferred | Plain
