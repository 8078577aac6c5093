"""A broken stream resumes from the last complete frame without loss."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.bridge.stream import hub
from nousd.bridge.stream import sse as streams
from nousd.machine.context.model_input import ModelInput
from nousd.providers.interface import NO_BLOBS, Blobs, Piece, Receive, TextDelta
from nousd.providers.mock.provider import MockProvider
from tests.bridge.harness import Bridge, Frame, bridge_to, frames_in, text
from tests.bridge.raw_http import opened
from tests.harness.daemon import WAIT_SECONDS, socket_daemon

BYTES_MAX = 4000
FRAME_BYTES_MIN = 300


class _PacedProvider(MockProvider):
    """A mock provider that sends only as many deltas as the test permits."""

    def __init__(self) -> None:
        super().__init__()
        self._leave = trio.Semaphore(0)

    def let(self, deltas: int) -> None:
        for _ in range(deltas):
            self._leave.release()

    async def generate(
        self, request: ModelInput, receive: Receive, blobs: Blobs = NO_BLOBS
    ) -> None:
        async def receive_paced(piece: Piece) -> None:
            if isinstance(piece, TextDelta):
                await self._leave.acquire()
            await receive(piece)

        await super().generate(request, receive_paced, blobs)


class _CutReader:
    """Reads an event stream in any number of connections, each cut after some bytes."""

    def __init__(self, bridge: Bridge, path: str = "/event", **query: str) -> None:
        self.frames: list[Frame] = []
        self.connections = 0
        self._bridge = bridge
        self._path = path
        self._query = query
        self._fruitless = 0

    @property
    def has_end(self) -> bool:
        return self.frames[-1:] != [] and self.frames[-1].type == "session.run.finished"

    async def greet(self) -> None:
        """Read the greeting, whose id is the first position."""
        async with self._bridge.stream_of("GET", self._path, params=self._query) as frames:
            self.frames += (await frames.until("engine.lifecycle.ready"))[-1:]

    async def read(self, bytes_wanted: int) -> None:
        """Resume, read that many bytes, and store the complete frames among them.

        If no frame is complete, the next attempt reads twice as many bytes, and so on.
        """
        self.connections += 1
        received = await self._cut_after(bytes_wanted << self._fruitless)
        new = [frame for frame in frames_in(received) if frame.id]
        self.frames += new
        self._fruitless = 0 if new else self._fruitless + 1

    async def _cut_after(self, bytes_wanted: int) -> bytes:
        headers = {"accept": "text/event-stream"}
        if self.frames:
            headers["last-event-id"] = self.frames[-1].id
        request = self._bridge.http.build_request(
            "GET", self._path, params=self._query, headers=headers
        )
        received = b""
        async with opened(request) as reply:
            chunks = reply.chunks()
            while len(received) < bytes_wanted and b"run.finished" not in received:
                received += await anext(chunks)
            await chunks.aclose()
        return received[:bytes_wanted]


@pytest.mark.parametrize(
    ("is_far_behind", "deltas", "cuts"),
    [
        (False, 400, 100),
        pytest.param(False, 2000, 500, marks=pytest.mark.slow),
        pytest.param(True, 700, 150, marks=pytest.mark.slow),
    ],
)
@pytest.mark.behaviour("http_streams_lose_nothing")
async def test_a_reader_cut_off_hundreds_of_times_in_a_fast_run_receives_every_event_once(
    short_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_far_behind: bool,
    deltas: int,
    cuts: int,
) -> None:
    """Near the model the reader uses the window; far behind it reads the log until it catches up."""
    monkeypatch.setattr(streams, "PACE_SECONDS", 0.0)
    if is_far_behind:
        monkeypatch.setattr(hub, "WINDOW_EVENTS_MAX", 100)
    model = _PacedProvider()
    async with (
        socket_daemon(short_folder, provider=model) as daemon,
        bridge_to(daemon) as bridge,
    ):
        session = await bridge.new_session()
        reader = _CutReader(bridge, sessionID=session)
        dice = random.Random(20261121)
        await reader.greet()
        await bridge.post(f"/session/{session}/prompt_async", parts=text(f"[[say {deltas}]]"))
        with trio.fail_after(20 * WAIT_SECONDS):
            while not reader.has_end:
                size = dice.randrange(1, BYTES_MAX)
                model.let(deltas if is_far_behind else size // FRAME_BYTES_MIN + 1)
                await reader.read(size)

        told = [frame for frame in reader.frames if frame.envelope]
        ids = [int(frame.id) for frame in told]
        assert ids == sorted(set(ids)), "in order, and none twice"
        assert told[0].type == "session.updated"  # the prompt gave it a title
        whole = await _listed(bridge, told[1].properties["runID"])
        assert [frame.envelope["event_id"] for frame in told if _is_of_run(frame)] == [
            frame["envelope"]["event_id"] for frame in whole
        ], "and none is missing"
        assert len([frame for frame in told if "delta" in frame.properties]) == deltas + 1
        assert reader.connections > cuts


def _is_of_run(frame: Frame) -> bool:
    return "run_id" in frame.envelope


async def _listed(bridge: Bridge, run_id: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = await bridge.get(f"/run/{run_id}/events")
    return listed
