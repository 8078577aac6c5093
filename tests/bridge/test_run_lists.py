"""The list of a run's events, and parts of it."""

from __future__ import annotations

from typing import Any

import pytest

from nousd.bridge.routes.streams import EVENTS_MAX
from nousd.views.stream_position import FRAMES_MAX
from tests.bridge.harness import Bridge, text


@pytest.fixture
async def path(bridge: Bridge) -> str:
    """The path of the events of a run that is over, with one before it and one after it."""
    session = await bridge.new_session()
    runs = []
    for words in ("one", "two", "three"):
        reply = await bridge.http.post(
            f"/session/{session}/prompt_sync", json={"parts": text(words)}
        )
        runs.append(reply.headers["x-tandem-run-id"])
    return f"/run/{runs[1]}/events"


def numbers(told: list[Any]) -> list[int]:
    return [frame["envelope"]["seq"] for frame in told]


async def test_a_list_has_the_run_from_its_beginning_to_its_end(bridge: Bridge, path: str) -> None:
    told = await bridge.get(path)
    assert told[0]["type"] == "session.run.started"
    assert told[-1]["type"] == "session.run.finished"
    assert {frame["properties"]["runID"] for frame in told} == {path.split("/")[2]}
    assert numbers(told) == sorted(set(numbers(told)))


async def test_since_seq_returns_the_later_frames_of_the_run(bridge: Bridge, path: str) -> None:
    told = await bridge.get(path)
    for index, seq in enumerate(numbers(told)):
        assert await bridge.get(path, since_seq=seq) == told[index + 1 :]
    assert await bridge.get(path, since_seq=0) == told
    assert await bridge.get(path, after=str(numbers(told)[0]), since_seq=0) == told[1:]


async def test_tail_returns_the_last_frames(bridge: Bridge, path: str) -> None:
    told = await bridge.get(path)
    assert await bridge.get(path, tail=0) == []
    assert await bridge.get(path, tail=2) == told[-2:]
    assert await bridge.get(path, tail=EVENTS_MAX) == told
    assert await bridge.get(path, tail=1, since_seq=numbers(told)[0]) == told[-1:]


async def test_a_long_list_is_returned_in_parts_that_continue_with_since_seq(
    bridge: Bridge, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = await bridge.get(path)
    monkeypatch.setattr("nousd.bridge.routes.streams.EVENTS_MAX", 3)
    parts = [await bridge.get(path)]
    while len(parts[-1]) == 3:
        parts.append(await bridge.get(path, since_seq=numbers(parts[-1])[-1]))
    assert len(parts) > 2
    assert [frame for part in parts for frame in part] == told


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "query",
    [
        {"tail": -1},
        {"tail": EVENTS_MAX + 1},
        {"tail": "x"},
        {"since_seq": -1},
        {"since_seq": 2**62},
    ],
)
async def test_an_invalid_tail_or_since_seq_is_refused(
    bridge: Bridge, path: str, query: dict[str, Any]
) -> None:
    reply = await bridge.http.get(path, params=query)
    assert (reply.status_code, reply.json()["code"]) == (400, "BAD_REQUEST")


@pytest.mark.parametrize("name", ["after", "since_seq"])
async def test_a_position_beyond_the_log_is_refused_by_its_name_and_the_last_one_is_told(
    name: str, bridge: Bridge, path: str
) -> None:
    reply = await bridge.http.get(path, params={name: 2**40})
    assert (reply.status_code, reply.json()["code"]) == (400, "BAD_REQUEST")
    words, _, last = reply.json()["error"].rpartition(" ")
    assert words.startswith(f"query: {name} ")
    for position, status in ((int(last), 200), (int(last) + FRAMES_MAX, 400)):
        reply = await bridge.http.get(path, params={name: position})
        assert reply.status_code == status


async def test_the_events_of_an_unknown_run_are_run_not_found(bridge: Bridge) -> None:
    for run_id in ("nope", "n" * 300):
        reply = await bridge.http.get(f"/run/{run_id}/events")
        assert (reply.status_code, reply.json()["code"]) == (404, "RUN_NOT_FOUND")
