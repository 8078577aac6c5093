"""``nousd replay``: replays a stored run and reports whether its events are the same."""

from __future__ import annotations

from functools import partial

import apsw
import msgspec
import trio

from nousd.daemon.error_boundary import run_contained
from nousd.errors import InternalError, NousdError
from nousd.replay.compare import compare_run
from nousd.replay.play import Tuning, play
from nousd.replay.recorded import RecordedRun, make_damage_error, read_run
from nousd.replay.recorded_context import context_of
from nousd.replay.sqlite_log import open_run_log


class ReplayReport(msgspec.Struct, frozen=True):
    """The result of a replay.

    Args:
        events: the number of compared events.
        difference: the lines of a diff; empty if the events are the same.
        notes: sentences about the parts that were not compared.
    """

    run_id: str
    events: int
    difference: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        return not self.difference

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines of the report."""
        if self.is_same:
            return (f"same: {self.events} events", *self.notes)
        return (*self.difference, *self.notes)


def replay(connection: apsw.Connection, run_id: str, tuning: Tuning) -> ReplayReport:
    """Replay a run of an open log.

    Raises:
        NotReplayable: the run cannot be replayed, for the reason in the text.
        StoreError: the log cannot be read.
    """
    with open_run_log(connection) as log:
        run = read_run(log, run_id)
    return trio.run(replay_run, run, tuning)


async def replay_run(run: RecordedRun, tuning: Tuning) -> ReplayReport:
    """Replay a run and compare it with the recording.

    Raises:
        NotReplayable: the run cannot be replayed, for the reason in the text.
    """
    report = await run_contained(
        partial(_play_and_compare, run, tuning), f"a replay of {run.run_id}"
    )
    if isinstance(report, InternalError):
        # A damaged log is reported in one sentence, whatever error it causes.
        raise make_damage_error(run.run_id, "its events do not fit together")
    if isinstance(report, NousdError):
        raise report
    return report


async def _play_and_compare(run: RecordedRun, tuning: Tuning) -> ReplayReport:
    played = await play(run, tuning)
    # The inputs of an agent program are logged again unchanged.
    inputs_known = run.is_of_agent or context_of(run).is_known
    comparison = compare_run(run, played, inputs_known=inputs_known)
    return ReplayReport(run.run_id, comparison.events, comparison.difference, comparison.notes)
