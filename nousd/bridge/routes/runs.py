"""Runs: read the active one, and stop it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from starlette.responses import Response

from nousd.bridge.replies import RUN_CONFLICT, HttpError, json_reply
from nousd.bridge.routing.route import Call, Routes
from nousd.client.client import Client
from nousd.errors import Refused
from nousd.views.tandem.runs import Idle, RunNow, render_conflict, render_run_state
from nousd.wire.commands import Abort, GetState
from nousd.wire.responses.runs import ActiveRun

routes: Final = Routes()

_NOTHING_TO_CANCEL: Final = frozenset({"no_active_run", "run_mismatch"})


class Cancelled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``cancelled`` is true if there was a run to cancel."""

    ok: bool
    cancelled: bool
    closedBrowserSessions: int | None = None  # noqa: N815


async def get_active_run(daemon: Client, session_id: str) -> ActiveRun | None:
    """Return the active run of a session.

    Raises:
        Refused: the session does not exist.
    """
    state = await daemon.ask(GetState(session_id=session_id))
    return next((run for run in state.runs if run.session_id == session_id), None)


@asynccontextmanager
async def reporting_conflict(call: Call) -> AsyncIterator[None]:
    """Turn the refusal of a command because of an active run into the HTTP contract's conflict.

    Raises:
        HttpError: a run is active.
        Refused: the daemon refused a command in the block for another reason.
    """
    try:
        yield
    except Refused as refused:
        if refused.message != "run_in_progress":
            raise
        session_id = call.path["id"]
        details = refused.details
        if "started_at" not in details:
            run = await get_active_run(call.daemon, session_id)
            if run is None:
                raise
            details = msgspec.to_builtins(run)
        body = render_conflict({"last_activity_at": details["started_at"], **details})
        raise HttpError(RUN_CONFLICT, body.error, body=body) from None


@routes.get("/session/{id}/run", sends=("get_state",), replies={200: RunNow | Idle})
async def _get_run(call: Call) -> Response:
    """Read the active run, to attach to it again."""
    session_id = call.path["id"]
    return json_reply(render_run_state(session_id, await get_active_run(call.daemon, session_id)))


@routes.post(
    "/session/{id}/cancel",
    sends=("abort",),
    replies={200: Cancelled},
    aliases=("/session/{id}/abort",),
)
async def _cancel(call: Call) -> Response:
    """Stop the active run."""
    return await _stop_run(call, None)


@routes.post("/session/{id}/run/{run_id}/cancel", sends=("abort",), replies={200: Cancelled})
async def _cancel_run(call: Call) -> Response:
    """Stop this run, if it is active."""
    return await _stop_run(call, call.path["run_id"])


async def _stop_run(call: Call, run_id: str | None) -> Response:
    """Stop a run, or the active one if ``run_id`` is None, and keep the queue of its session."""
    abort = Abort(
        session_id=call.path["id"],
        expected_run_id=run_id,
        keep_queue=True,
        client_id=call.client_name,
    )
    try:
        await call.daemon.ask(abort)
        cancelled = True
    except Refused as refused:
        if refused.message not in _NOTHING_TO_CANCEL:
            raise
        cancelled = False
    closed = 0 if cancelled or run_id is None else None
    return json_reply(Cancelled(ok=True, cancelled=cancelled, closedBrowserSessions=closed))
