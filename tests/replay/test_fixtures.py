"""Every recorded run replays identically, from its events and from raw streams.

The fixtures are made by ``tests.replay.make_fixtures``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from nousd.providers.interface import Provider
from nousd.providers.setup.registry import ProviderSettings, make_provider
from nousd.replay.compare import compare_run
from nousd.replay.fixture import Fixture, read_fixture
from nousd.replay.play import Tuning, play
from nousd.replay.replay import replay_run
from nousd.replay.versions import note_on
from nousd.wire.events import AgentEnd
from tests.harness.daemon import WAIT_SECONDS
from tests.harness.stub_model import Gate, Reply, StubModel, stub_model
from tests.providers.dialects import DIALECTS
from tests.replay.make_fixtures import FOLDER, STORIES

NAMES = sorted(path.name for path in FOLDER.iterdir())


@pytest.fixture(params=NAMES)
def fixture(request: pytest.FixtureRequest) -> Fixture:
    return read_fixture(FOLDER / request.param)


def replies_of(fixture: Fixture) -> Iterator[Reply]:
    """Yield the recorded replies of the servers; the last call of a stopped run hangs."""
    end = fixture.run.events[-1]
    assert isinstance(end, AgentEnd)
    was_stopped = end.status not in ("completed", "error")
    for exchange in fixture.exchanges:
        known = exchange.known
        more = (Gate(),) if was_stopped and exchange is fixture.exchanges[-1] else ()
        yield Reply(
            (exchange.response, *more),
            status=known.status or 200,
            content_type=known.content_type,
            drops_at_once=known.status is None,
        )


def server(fixture: Fixture, stub: StubModel, name: str) -> Provider:
    """Return the real provider at a server that replays the recording, without retry waits."""
    dialect = fixture.dialects[name]
    settings = ProviderSettings(api_base=f"{stub.origin}/v1", model="test-model")
    return make_provider(dialect, settings, name=name, random=lambda: -1.0)


def test_there_is_a_fixture_of_every_story_in_every_dialect() -> None:
    assert sorted(f"{dialect.name}-{story}" for dialect in DIALECTS for story in STORIES) == NAMES


@pytest.mark.slow(keep=20)
async def test_a_run_replays_identically_from_its_events(fixture: Fixture) -> None:
    with trio.fail_after(WAIT_SECONDS):
        report = await replay_run(fixture.run, Tuning())
    assert report.is_same, "\n".join(report.lines)
    assert report.notes == note_on(fixture.run.version)


@pytest.mark.slow(keep=20)
async def test_a_run_replays_identically_from_its_raw_streams(fixture: Fixture) -> None:
    async with stub_model() as stub:
        stub.script(*replies_of(fixture))
        with trio.fail_after(WAIT_SECONDS):
            played = await play(fixture.run, Tuning(), lambda name: server(fixture, stub, name))
        sent = [request.json for request in stub.requests]
    comparison = compare_run(fixture.run, played, inputs_known=True)
    assert comparison.is_same, "\n".join(comparison.difference)
    # The requests are the recorded ones, compared as JSON.
    assert sent == [json.loads(exchange.request) for exchange in fixture.exchanges]


def test_a_fixture_contains_no_local_path(fixture: Fixture) -> None:
    texts = [exchange.request + exchange.response for exchange in fixture.exchanges]
    texts += [artifact.data for artifact in fixture.run.artifacts.values()]
    assert not any(b"/tmp/" in text for text in texts)
    assert any(b"<WORKDIR>" in text for text in texts)


def test_a_fixture_survives_a_write_and_a_read(fixture: Fixture, tmp_path: Path) -> None:
    from nousd.replay.fixture import write_fixture

    write_fixture(fixture, tmp_path / "copy")
    assert read_fixture(tmp_path / "copy") == fixture
