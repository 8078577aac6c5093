"""A stream that breaks loses nothing: its reader comes back with the id of the last whole frame."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import trio

from nousd.providers.registry import make_provider
from tests.bridge.harness import Bridge, Frame, bridge_to, frames_in, text
from tests.bridge.raw_http import opened
from tests.daemon_harness import socket_daemon

CUTS = 500
DELTAS = 3000


class _CutReader:
    """Reads an event stream in any number of connections, each cut after some bytes."""

    def __init__(self, bridge: Bridge, **query: str) -> None:
        self.frames: list[Frame] = []
        self.connections = 0
        self._bridge = bridge
        self._query = query

    @property
    def has_end(self) -> bool:
        return self.frames[-1:] != [] and self.frames[-1].type == "session.run.finished"

    async def read(self, bytes_wanted: int) -> None:
        """Connects where it was, takes that many bytes, and keeps the whole frames among them."""
        headers = {"accept": "text/event-stream"}
        last = next((frame.id for frame in reversed(self.frames) if frame.id), None)
        if last is not None:
            headers["last-event-id"] = last
        request = self._bridge.http.build_request(
            "GET", "/event", params=self._query, headers=headers
        )
        received = b""
        async with opened(request) as reply:
            self.connections += 1
            chunks = reply.chunks()
            while len(received) < bytes_wanted and b"run.finished" not in received:
                received += await anext(chunks)
            await chunks.aclose()
        # A frame that is longer than any of the pieces would never come whole.
        new = frames_in(received[:bytes_wanted]) or frames_in(received)
        self.frames += [frame for frame in new if frame.id]


async def test_a_reader_that_is_cut_500_times_in_a_fast_run_has_every_event_once(
    short_folder: Path,
) -> None:
    async with (
        socket_daemon(short_folder, provider=make_provider("mock")) as daemon,
        bridge_to(daemon) as bridge,
    ):
        session = await bridge.new_session()
        reader = _CutReader(bridge, sessionID=session)
        dice = random.Random(20261121)
        await reader.read(1)  # from here on
        async with trio.open_nursery() as nursery:
            words = text(f"[[say {DELTAS}]]")
            nursery.start_soon(partial(bridge.post, f"/session/{session}/prompt_sync", parts=words))
            while not reader.has_end:
                await reader.read(dice.randrange(1, 6000))

        told = [frame for frame in reader.frames if frame.envelope]
        ids = [int(frame.id) for frame in told]
        assert ids == sorted(set(ids)), "in order, and none twice"
        listed = await bridge.get(f"/run/{told[0].properties['runID']}/events")
        assert [frame.envelope["event_id"] for frame in told] == [
            frame["envelope"]["event_id"] for frame in listed
        ], "and none is missing"
        assert len([frame for frame in told if "delta" in frame.properties]) > DELTAS
        assert reader.connections > CUTS
