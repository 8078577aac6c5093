"""A short soak of the real daemon; ``scripts/soak`` runs longer ones."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio

from tests.harness.process_figures import MIB, faults_in, growth_of
from tests.soak.readers import Logged, Numbers, SoakLog, SoakReader
from tests.soak.soak import Soak

SECONDS = 3
SECONDS_MAX = 150
"""A limit for a busy machine; a soak usually takes a few seconds longer than its load."""


@pytest.mark.slow
async def test_a_short_soak_with_many_connections_finds_no_faults(
    short_folder: Path,
) -> None:
    soak = Soak(short_folder, seed=1, seconds=SECONDS, sessions=8, connections=40)
    with trio.fail_after(SECONDS_MAX):
        await soak.run()
    assert soak.faults == [], soak.report()
    assert max(soak.runs_at_once) >= soak.sessions, soak.report()


# --- faults that a soak detects ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("megabytes", "grew"),
    [
        ((10, 40, 60, 60, 60, 60, 61, 60, 60), False),
        ((10, 40, 60, 60, 60, 60, 69, 60, 60), False),
        ((90, 90, 60, 60, 60, 60, 60, 60, 60), False),
        ((10, 20, 30, 40, 50, 60, 70, 80, 90), True),
        ((60, 60, 60, 60, 60, 60, 60, 60, 71), True),
        ((1, 2), True),
    ],
)
def test_memory_that_grows_after_the_first_third_is_detected(
    megabytes: tuple[int, ...], grew: bool
) -> None:
    assert (growth_of([each * MIB for each in megabytes]) is not None) == grew


def line(seq: int, session_id: str = "s", type: str = "agent_end") -> bytes:
    return b'{"v":"1","id":"evt-%d","type":"%b","payload":{"session_id":"%b"}}\n' % (
        seq,
        type.encode(),
        session_id.encode(),
    )


def reader_of(*lines: bytes, **wish: str) -> SoakReader:
    reader = SoakReader(Path(), Numbers(), Random(), 0, **{"types": "all", **wish})
    for each in lines:
        reader.last_seq = int(each.partition(b"evt-")[2].partition(b'"')[0])
        reader.keep(each)
    return reader


def log_of(*lines: bytes, deleted: str = "") -> SoakLog:
    reader = reader_of(*lines)
    kept = [
        Logged(seq, sum_, "agent_end", "t" if b'"t"' in each else "s")
        for each, seq, sum_ in zip(lines, reader.seqs, reader.sums, strict=True)
    ]
    return SoakLog([*kept, TOMBSTONE] if deleted else kept)


ONE, TWO, THREE = line(1), line(2, "t"), line(3)
GONE = line(9, "t", "session_deleted")
TOMBSTONE = Logged(9, reader_of(GONE).sums[0], "session_deleted", "t")


def test_a_reader_with_every_matching_line_of_the_log_has_no_faults() -> None:
    log = log_of(ONE, TWO, THREE)
    assert reader_of(ONE, TWO, THREE).faults(log) == []
    assert reader_of(ONE, THREE, session_id="s").faults(log) == []
    assert reader_of(types="turn_end").faults(log) == []


def test_lines_of_a_deleted_session_may_be_present_or_missing() -> None:
    log = log_of(ONE, THREE, deleted="t")
    assert reader_of(ONE, TWO, THREE, GONE).faults(log) == []
    assert reader_of(ONE, THREE, GONE).faults(log) == []
    assert "1 lines missing" in reader_of(ONE, TWO, THREE).faults(log)[0]


@pytest.mark.parametrize(
    ("got", "found"),
    [
        ((ONE, THREE), "1 lines missing"),
        ((ONE, line(2, "t", "turn_end"), THREE), "1 not in the log"),
        ((ONE, TWO, TWO, THREE), "1 duplicates"),
        ((ONE, TWO, THREE, line(4)), "1 not in the log"),
        ((TWO, ONE, THREE), "0 duplicates"),
    ],
)
def test_missing_duplicate_reordered_and_changed_lines_are_detected(
    got: tuple[bytes, ...], found: str
) -> None:
    [fault] = reader_of(*got).faults(log_of(ONE, TWO, THREE))
    assert found in fault


def test_internal_errors_are_detected_in_the_daemons_log() -> None:
    assert faults_in('{"level":"info","message":"listening on x"}\n') == []
    assert len(faults_in("Traceback (most recent call last):\n  ...")) == 1
    assert len(faults_in('{"message":"a fault of ours in ping"}')) == 1
