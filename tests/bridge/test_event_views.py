"""Properties of an event stream in any view, tested with Tandem's and with a toy view."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from nousd.bridge import run as bridge_run
from nousd.bridge.routes import ROWS, streams
from nousd.bridge.stream import hub as hub_module
from nousd.bridge.stream.rendered_event import StreamQuery, encode_frame
from nousd.bridge.stream.sse import encode_hello, stream_pages
from nousd.providers.mock.provider import MockProvider
from nousd.views.event_view import EventView
from nousd.views.stream_position import FRAMES_MAX, StreamPosition, position_after_id
from nousd.views.tandem.events import TANDEM
from nousd.wire.codec.envelope import decode_event
from nousd.wire.events import EVENTS, Event
from tests.bridge.harness import Bridge, bridge_to, text
from tests.bridge.raw_http import opened
from tests.bridge.test_frames import line_of, rendered_of
from tests.bridge.test_hub import Log, delta, ended, following, made_events, quiet, started
from tests.bridge.toy_view import TOY
from tests.harness.daemon import WAIT_SECONDS, socket_daemon
from tests.wire.strategies import structs

VIEWS: dict[str, EventView] = {"/event": TANDEM, "/toy": TOY}
"""Path of its stream -> view. A view that passes these tests can be served."""

START = StreamPosition(0, FRAMES_MAX)


class Received(NamedTuple):
    """A frame as any client of server-sent events sees it."""

    id: str
    type: str
    data: bytes


def received_in(stream: bytes) -> list[Received]:
    """Return the complete frames, without comments."""
    *whole, _ = stream.split(b"\n\n")
    frames = []
    for text_ in whole:
        fields = dict(line.split(b": ", 1) for line in text_.split(b"\n") if line[:1] != b":")
        if fields:
            id, type_ = fields.get(b"id", b"").decode(), fields.get(b"event", b"").decode()
            frames.append(Received(id, type_, fields[b"data"]))
    return frames


@pytest.fixture(params=VIEWS)
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def view(path: str) -> EventView:
    return VIEWS[path]


def test_a_view_names_existing_event_types(view: EventView) -> None:
    assert view.types
    assert view.types <= set(EVENTS)


any_event = st.sampled_from(sorted(EVENTS)).flatmap(lambda name: structs(EVENTS[name]))


@pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))
@given(event=any_event, of_run=st.booleans(), is_repeat=st.booleans())
def test_an_event_renders_to_a_few_single_lines_and_the_same_each_time(
    view: EventView, event: Event, of_run: bool, is_repeat: bool
) -> None:
    try:
        line = line_of(event)
        if type_of(line) not in view.types:
            return
        frames = view.render(line, of_run=of_run, is_repeat=is_repeat)
    except (ValueError, UnicodeEncodeError):
        return  # an invalid time, or a text that cannot be in the log
    assert len(frames) <= FRAMES_MAX
    assert not any(set(b"\r\n") & set(frame.data) for frame in frames)
    assert frames == view.render(line, of_run=of_run, is_repeat=is_repeat)


def type_of(line: bytes) -> str:
    return decode_event(line).type


def test_a_greeting_is_whole_frames_with_the_newest_id_on_the_last(view: EventView) -> None:
    for run_id in (None, "run-1"):
        frames = view.hello(0, run_id)
        hello = received_in(encode_hello(frames, 5))
        assert [frame.data for frame in hello] == [frame.data for frame in frames]
        ids = [position_after_id(frame.id) for frame in hello]
        assert ids == [None] * (len(hello) - 1) + [StreamPosition(5, FRAMES_MAX)] * bool(hello)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))
@given(data=st.data(), first=st.lists(made_events))
def test_a_reader_cut_off_after_any_frame_receives_each_frame_once(
    view: EventView, data: st.DataObject, first: list[Event]
) -> None:
    """The limits are so small that the reader alternates between window and log."""

    async def play() -> None:
        log = Log()
        for event in first:
            log.append(event)
        query = StreamQuery(view)
        async with following(log, view) as hub:
            position, seen = START, list[str]()
            for event in [*data.draw(st.lists(made_events)), delta(), delta()]:
                log.append(event)
                await wait_all_tasks_blocked()
                page = await hub.page_after(position, query)
                got = received_in(page.data)
                kept = got[: data.draw(st.integers(0, len(got)))]
                seen += [frame.id for frame in kept]
                position = page.position if len(kept) == len(got) else position
                if kept and len(kept) < len(got):
                    position = position_after_id(kept[-1].id) or position
            while position.after < hub.head:
                page = await hub.page_after(position, query)
                seen += [frame.id for frame in received_in(page.data)]
                position = page.position
        frames = b"".join(
            part for _, _, line in log.lines for part in rendered_of(line).frames(view)
        )
        assert seen == [frame.id for frame in received_in(frames)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub_module, "WINDOW_EVENTS_MAX", 6)
        patch.setattr(hub_module, "LOGGED_EVENTS", 2)
        patch.setattr(hub_module, "PAGE_EVENTS", 2)
        patch.setattr(hub_module, "PAGE_BYTES", 900)
        trio.run(play, clock=MockClock(autojump_threshold=0))


async def test_a_run_stream_sends_a_keepalive_and_ends_with_its_run(
    view: EventView, autojump_clock: MockClock
) -> None:
    log = Log()
    async with following(log, view) as hub:
        stream = stream_pages(hub, StreamQuery(view, None, "run-1"), START, ends_with_run=True)
        log.append(quiet())
        keepalive = b":\n\n" if view.keepalive is None else encode_frame(view.keepalive)
        assert await anext(stream) == keepalive
        for event in (started(), delta(), ended()):
            log.append(event)
        with trio.fail_after(60):
            chunks = b"".join([chunk async for chunk in stream])
    assert len(received_in(chunks)) >= 3


async def test_a_route_serves_a_view_whose_readers_resume_with_the_last_id(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    row = streams.routes[0]._replace(path="/toy", view=TOY, aliases=())
    monkeypatch.setattr(bridge_run, "ROWS", (*ROWS, row))
    async with (
        socket_daemon(short_folder, provider=MockProvider()) as daemon,
        bridge_to(daemon) as bridge,
    ):
        session = await bridge.new_session()
        await bridge.post(f"/session/{session}/prompt_sync", parts=text("[[say 20]]"))
        last = await bridge.new_session()
        whole = await read_until(bridge, path, last, after="evt-0")
        ids = [int(frame.id) for frame in whole]
        assert ids == sorted(set(ids))
        assert len(ids) > 3
        for frame in (whole[0], whole[len(whole) // 2]):
            rest = await read_until(bridge, path, last, after=frame.id)
            assert rest == whole[whole.index(frame) + 1 :]


async def read_until(bridge: Bridge, path: str, words: str, *, after: str) -> list[Received]:
    """Return the frames up to the first one with these words in it."""
    request = bridge.http.build_request("GET", path, params={"after": after})
    stream = b""
    with trio.fail_after(WAIT_SECONDS):
        async with opened(request) as reply:
            assert reply.status == 200
            chunks = reply.chunks()
            while not any(words.encode() in frame.data for frame in received_in(stream)):
                stream += await anext(chunks)
            await chunks.aclose()
    frames = [frame for frame in received_in(stream) if frame.id]
    (end, *_) = [index for index, frame in enumerate(frames) if words.encode() in frame.data]
    return frames[: end + 1]
