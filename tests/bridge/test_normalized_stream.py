"""The normalized view over HTTP: resuming, filters, keep-alives, and the end of its streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.bridge.stream import passed_on
from nousd.daemon.policy.permissions import RulePermissions
from nousd.providers.mock.provider import MockProvider
from tests.bridge.harness import Bridge, bridge_alone, bridge_to, text
from tests.bridge.raw_http import opened
from tests.daemon.asking_bench import naming
from tests.harness.daemon import WAIT_SECONDS, Daemon, socket_daemon
from tests.harness.normalized import Frame, frames_in, lines_of


def blocks_in(stream: bytes) -> list[tuple[str, Frame | None]]:
    """Return the id and the event of each whole block that has an id."""
    *whole, _ = stream.split(b"\n\n")
    blocks = []
    for block in whole:
        fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if line[:1] != b":")
        if fields:
            data = json.loads(fields[b"data"]) if b"data" in fields else None
            blocks.append((fields[b"id"].decode(), data))
    return blocks


async def read(
    bridge: Bridge, count: int, *, headers: dict[str, str] | None = None, **query: Any
) -> list[Frame]:
    """Return the first events of a stream; each has its ``seq`` as id."""
    params = {"view": "normalized", **query}
    request = bridge.http.build_request("GET", "/event", params=params, headers=headers)
    stream, frames = b"", list[Frame]()
    with trio.fail_after(WAIT_SECONDS):
        async with opened(request) as reply:
            assert reply.status == 200, await reply.whole()
            chunks = reply.chunks()
            while len(frames) < count:
                stream += await anext(chunks)
                blocks = blocks_in(stream)
                frames = [frame for _, frame in blocks if frame is not None]
                ids = [id for id, frame in blocks if frame is not None]
                assert ids == [str(frame["seq"]) for frame in frames]
            await chunks.aclose()
    return frames


async def frames_of_log(daemon: Daemon) -> list[Frame]:
    return frames_in(await lines_of(daemon.services.store))


@pytest.mark.behaviour("normalized_events_are_the_same_from_every_position")
async def test_a_reader_resumes_with_the_last_id_from_every_event(short_folder: Path) -> None:
    async with (
        socket_daemon(short_folder, provider=MockProvider()) as daemon,
        bridge_to(daemon) as bridge,
    ):
        session = await bridge.new_session()
        await bridge.post(f"/session/{session}/prompt_sync", parts=text("[[think 2]] [[say 3]]"))
        whole = await frames_of_log(daemon)
        assert await read(bridge, len(whole), after="evt-0") == whole
        for at, frame in enumerate(whole[:-1]):
            rest = whole[at + 1 :]
            last = {"last-event-id": str(frame["seq"])}
            assert await read(bridge, len(rest), headers=last) == rest
        run = whole[-1]["trace"]["task_id"]
        of_run = [frame for frame in whole if frame["trace"].get("task_id") == run]
        assert await read(bridge, len(of_run), runID=run) == of_run
        assert await read(bridge, len(whole), sessionID=session, after="evt-0") == whole


async def test_a_reader_that_saw_nothing_resumes_with_the_first_id(short_folder: Path) -> None:
    async with (
        socket_daemon(short_folder, provider=MockProvider()) as daemon,
        bridge_to(daemon) as bridge,
    ):
        session = await bridge.new_session()
        request = bridge.http.build_request("GET", "/event", params={"view": "normalized"})
        async with opened(request) as reply:
            chunks = reply.chunks()
            [(first, nothing)] = blocks_in(await anext(chunks))
            assert nothing is None
            await chunks.aclose()
        before = await frames_of_log(daemon)
        await bridge.post(f"/session/{session}/prompt_sync", parts=text("[[say 1]]"))
        missed = (await frames_of_log(daemon))[len(before) :]
        assert await read(bridge, len(missed), headers={"last-event-id": first}) == missed


async def test_an_unknown_view_is_refused(short_folder: Path) -> None:
    async with (
        socket_daemon(short_folder, provider=MockProvider()) as daemon,
        bridge_to(daemon) as bridge,
    ):
        assert (await bridge.http.get("/event", params={"view": "other"})).status_code == 400


async def test_a_silent_stream_is_kept_alive_and_ends_with_its_daemon(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passed_on, "HTTP_KEEPALIVE_SECONDS", 0.01)
    async with bridge_alone(short_folder / "nous.sock") as bridge:
        async with socket_daemon(short_folder, provider=MockProvider()):
            while (await bridge.http.get("/session")).status_code != 200:
                await trio.lowlevel.checkpoint()
            request = bridge.http.build_request("GET", "/event", params={"view": "normalized"})
            reply = opened(request)
            chunks = (await reply.__aenter__()).chunks()
            with trio.fail_after(WAIT_SECONDS):
                while await anext(chunks) != b":\n\n":
                    pass
        with trio.fail_after(WAIT_SECONDS):
            assert {chunk async for chunk in chunks} <= {b":\n\n"}
        await reply.__aexit__(None, None, None)


async def test_a_reader_of_the_view_counts_as_one_who_answers(short_folder: Path) -> None:
    async with (
        socket_daemon(
            short_folder, provider=MockProvider(), permissions=RulePermissions("ask")
        ) as daemon,
        bridge_to(daemon) as bridge,
    ):
        client, events = await daemon.connect(), await daemon.watch(types="all")
        params = {"view": "normalized"}
        async with opened(bridge.http.build_request("GET", "/event", params=params)) as reply:
            chunks = reply.chunks()
            await anext(chunks)
            call = '[[tool write {"path": "a.txt", "content": "a"}]]'
            await client.request("prompt", text=call, wait=False)
            asked = (await events.until("permission_requested"))["payload"]
            await client.request("confirm_tool", **naming(asked, "once"))
            await events.until("agent_end", status="completed")
            await chunks.aclose()
