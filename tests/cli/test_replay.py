"""The command lines of ``nousd replay`` and ``nousd record``."""

from __future__ import annotations

import json
from pathlib import Path

import apsw
import pytest

from tests.cli.conftest import Nousd
from tests.harness.earlier_stores import HELD, unpack

NAME = "schema-2"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    unpack(NAME, folder / "nousd.db")
    return folder


@pytest.fixture
def run_id(state: Path) -> str:
    """A run with two tool calls."""
    query = "SELECT run_id FROM events WHERE type = 'tool_call_started' ORDER BY seq LIMIT 1"
    return str(execute(state, query))


def execute(state: Path, statement: str) -> object:
    connection = apsw.Connection(str(state / "nousd.db"))
    try:
        return connection.execute(statement).get
    finally:
        connection.close()


def test_an_identical_replay_says_so_with_exit_code_0(
    nousd: Nousd, state: Path, run_id: str
) -> None:
    outcome = nousd("replay", run_id, "--state-dir", state)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[0] == "same: 47 events"


def test_a_changed_result_is_shown_with_exit_code_1(nousd: Nousd, state: Path, run_id: str) -> None:
    execute(
        state,
        """
        UPDATE events
        SET line = CAST(replace(CAST(line AS TEXT), '"result":"alpha', '"result":"omega') AS BLOB)
        WHERE type = 'tool_execution_end'
        """,
    )
    outcome = nousd("replay", run_id, "--state-dir", state)
    assert outcome.code == 1
    assert outcome.out.startswith("the first difference is in event ")
    lines = outcome.out.splitlines()
    assert '-  result: "omega"' in lines
    assert '+  result: "alpha"' in lines


def test_replay_prints_its_report_as_json(nousd: Nousd, state: Path, run_id: str) -> None:
    report = json.loads(nousd("replay", run_id, "--json", "--state-dir", state).out)
    assert report["run_id"] == run_id
    assert (report["events"], report["difference"]) == (47, [])


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("run-nosuch", "nousd: the log has no run run-nosuch\n"),
        (HELD[NAME].killed, f"nousd: run {HELD[NAME].killed} has no end: "),
    ],
)
def test_a_run_that_cannot_be_replayed_is_exit_code_2_with_the_reason(
    nousd: Nousd, state: Path, run: str, said: str
) -> None:
    outcome = nousd("replay", run, "--state-dir", state)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(said)


def test_a_replay_changes_nothing(nousd: Nousd, state: Path, run_id: str) -> None:
    before = {path.name: path.read_bytes() for path in state.iterdir()}
    nousd("replay", run_id, "--state-dir", state)
    assert {path.name: path.read_bytes() for path in state.iterdir()} == before


def test_record_refuses_a_run_without_a_recording_and_an_existing_target(
    nousd: Nousd, state: Path, run_id: str, tmp_path: Path
) -> None:
    places = ["--from", tmp_path / "raw", "--output", tmp_path / "made", "--state-dir", state]
    outcome = nousd("record", run_id, *places)
    assert outcome.code == 2
    assert outcome.err == f"nousd: {tmp_path / 'raw'} holds no recording of run {run_id}\n"
    (tmp_path / "made").mkdir()
    assert nousd("record", run_id, *places).err.endswith("a fixture overwrites nothing\n")
