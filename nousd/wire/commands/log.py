"""Commands that read runs and events from the log."""

from __future__ import annotations

from nousd.wire.commands.base import AnsweredBy
from nousd.wire.limits import PAGE_ROWS_MAX
from nousd.wire.objects.field_types import (
    EventTypes,
    Name,
    OptionalCursor,
    PageSize,
    View,
    ViewSeq,
)
from nousd.wire.responses import (
    Events,
    Run,
    Runs,
)


class ListRuns(AnsweredBy[Runs], frozen=True, kw_only=True):
    """List the runs of one session, or of all, newest first."""

    session_id: Name | None = None
    limit: PageSize = 100
    before: Name | None = None


class GetRun(AnsweredBy[Run], frozen=True, kw_only=True):
    """Read the record of one run."""

    run_id: Name


class GetEvents(AnsweredBy[Events], frozen=True, kw_only=True):
    """Read a page of the log: events after a cursor, filtered as in a subscription."""

    after: OptionalCursor = None
    session_id: Name | None = None
    run_id: Name | None = None
    types: EventTypes = "v1"
    view: View | None = None
    after_seq: ViewSeq | None = None
    limit: PageSize = PAGE_ROWS_MAX
