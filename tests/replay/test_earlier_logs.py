"""Runs in logs of earlier versions: replayed as far as the logs allow."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from nousd.errors import NotReplayable
from nousd.replay.play import Tuning
from nousd.replay.replay import replay
from nousd.wire.codec.upcasting import EVENT_SCHEMA_VERSION
from tests.daemon.process_harness import Place, running
from tests.harness.earlier_stores import EARLIER, HELD, unpack


def ended_runs(connection: apsw.Connection) -> list[str]:
    query = "SELECT run_id FROM runs WHERE status != 'running' ORDER BY seq"
    return [run_id for (run_id,) in connection.execute(query)]


@pytest.mark.parametrize("name", EARLIER)
@pytest.mark.slow(keep=1)
def test_every_ended_run_of_an_earlier_version_replays_identically(
    name: str, tmp_path: Path
) -> None:
    unpack(name, tmp_path / "nousd.db")
    held = HELD[name]
    connection = apsw.Connection(str(tmp_path / "nousd.db"))
    runs = ended_runs(connection)
    assert len(runs) == len(held.ended)
    for run_id in runs:
        report = replay(connection, run_id, Tuning())
        assert report.is_same, "\n".join(report.lines)
        if held.version < EVENT_SCHEMA_VERSION:
            assert report.notes == (
                f"not compared: what version {held.version} of the log did not tell",
            )
    connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", EARLIER)
async def test_a_killed_run_is_replayable_only_after_the_next_start_ended_it(
    name: str, short_folder: Path
) -> None:
    place = Place(short_folder)
    path, killed = place.state / "nousd.db", HELD[name].killed
    unpack(name, path)
    connection = apsw.Connection(str(path))
    with pytest.raises(NotReplayable, match="has no end"):
        replay_in_a_thread(connection, killed)
    connection.close()
    async with running(place) as process:
        await process.stop()
    connection = apsw.Connection(str(path))
    assert replay_in_a_thread(connection, killed)
    connection.close()


def replay_in_a_thread(connection: apsw.Connection, run_id: str) -> bool:
    """Replay in a thread, since a replay runs its own event loop."""
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(replay, connection, run_id, Tuning()).result(15).is_same
