"""The hub that stream readers share, in front of a daemon whose log the test writes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from nousd.bridge.stream import hub as hub_module
from nousd.bridge.stream.hub import Hub
from nousd.bridge.stream.rendered_event import StreamQuery
from nousd.bridge.stream.sse import stream_pages
from nousd.client.answers import ReceivedEvent, decode_subscription_line
from nousd.client.client import Client
from nousd.client.resuming import Retry
from nousd.errors import ConnectionLost, Refused
from nousd.views.event_view import EventView
from nousd.views.stream_position import FRAMES_MAX, StreamPosition, position_after_id
from nousd.views.tandem.events import TANDEM
from nousd.wire import events
from nousd.wire.commands import GetEvents
from nousd.wire.commands.subscribe import Subscribe, cursor, cursor_seq
from nousd.wire.events import Event, thread_of
from nousd.wire.responses import Events
from tests.bridge.harness import Frame, frames_in
from tests.bridge.test_frames import frames_of, line_of, rendered_of
from tests.harness.daemon import WAIT_SECONDS

FOREVER = Retry(give_up=0.0)
Query = partial(StreamQuery, TANDEM)
ALL = Query()


class Log:
    """A daemon's log as the window's client sees it. Its end raises an exception in its followers."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, Event, bytes]] = []
        self.head = 0
        self.reads = 0
        self._following: trio.MemorySendChannel[bytes | Exception] | None = None

    def append(self, event: Event, *, gap: int = 0) -> int:
        self.head += 1 + gap
        line = line_of(event, self.head)
        if isinstance(event, events.SessionDeleted):
            self.lines = [entry for entry in self.lines if entry[1].session_id != event.session_id]
        self.lines.append((self.head, event, line))
        self._tell(line)
        return self.head

    def end(self, error: Exception) -> None:
        self._tell(error)

    def _tell(self, told: bytes | Exception) -> None:
        if self._following is not None:
            self._following.send_nowait(told)

    @asynccontextmanager
    async def follow(self, wanted: Subscribe, retry: Retry) -> AsyncIterator[Any]:
        send, receive = trio.open_memory_channel[bytes | Exception](10_000)
        self._following = send
        yield _Following(cursor(self.head), receive)

    async def ask(self, command: GetEvents) -> Events:
        await trio.lowlevel.checkpoint()
        self.reads += 1
        after = cursor_seq(command.after or "evt-0")
        found = [
            (seq, line)
            for seq, event, line in self.lines
            if seq > after
            and command.session_id in (None, event.session_id)
            and command.run_id in (None, thread_of(event))
        ][: command.limit]
        reached = found[-1][0] if found else self.head
        return Events(
            events=tuple(msgspec.Raw(line) for _, line in found),
            next=cursor(reached),
            head=cursor(self.head),
        )


class _Following:
    def __init__(self, cursor: str, told: trio.MemoryReceiveChannel[bytes | Exception]) -> None:
        self.cursor = cursor
        self._told = told

    def __aiter__(self) -> _Following:
        return self

    async def __anext__(self) -> ReceivedEvent:
        told = await self._told.receive()
        if isinstance(told, Exception):
            raise told
        event = decode_subscription_line(told)
        assert isinstance(event, ReceivedEvent)
        return event


@asynccontextmanager
async def following(log: Log, view: EventView = TANDEM) -> AsyncIterator[Hub]:
    hub = Hub(cast("Client", log), [view], FOREVER)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hub.follow)
        await hub.wait_begun()
        yield hub
        nursery.cancel_scope.cancel()


def delta(session: str = "sess-1", run: str = "run-1", words: str = "d") -> Event:
    return events.MessageUpdate(
        session_id=session, run_id=run, turn_id="turn-1", message_id="msg-1", delta=words
    )


def started(session: str = "sess-1", run: str = "run-1") -> Event:
    return events.AgentStart(session_id=session, run_id=run, runtime="native", model="m")


def ended(session: str = "sess-1", run: str = "run-1") -> Event:
    return events.AgentEnd(session_id=session, run_id=run, status="completed")


def quiet(session: str = "sess-1", run: str = "run-1") -> Event:
    """Return an event that has no frame."""
    return events.RunAborting(session_id=session, run_id=run)


async def read(
    hub: Hub, position: StreamPosition, wanted: StreamQuery = ALL
) -> tuple[list[Frame], StreamPosition]:
    """Read up to the newest event."""
    frames: list[Frame] = []
    while position.after < hub.head:
        page = await hub.page_after(position, wanted)
        frames += frames_in(page.data)
        position = page.position
    return frames, position


def frame_ids(log: Log, wanted: StreamQuery = ALL) -> list[str]:
    """Return the ids of all the frames that the log becomes."""
    made = [rendered_of(line) for _, _, line in log.lines]
    lines = [line for event in made if wanted.matches(event) for line in frames_of(event)]
    return [frame.id for frame in frames_in(b"".join(lines))]


MAKERS = (delta, started, ended, quiet)
sessions = st.sampled_from(["sess-1", "sess-2"])
runs = st.sampled_from(["run-1", "run-2"])
made_events = st.builds(
    lambda make, s, r: make(s, f"{s}-{r}"), st.sampled_from(MAKERS), sessions, runs
)
renamings = st.builds(lambda session: events.SessionUpdated(session_id=session, name="n"), sessions)
queries = st.sampled_from(
    [
        ALL,
        Query("sess-1"),
        Query(None, "sess-1-run-1"),
        Query("sess-1", "sess-1-run-1"),
        Query("sess-1", "sess-1-run-1", only_run=True),
    ]
)


@given(data=st.data(), wanted=queries, first=st.lists(st.tuples(made_events, st.integers(0, 3))))
def test_a_reader_cut_off_anywhere_receives_each_frame_once_from_log_and_window(
    data: st.DataObject, wanted: StreamQuery, first: list[tuple[Event, int]]
) -> None:
    """The limits are so small that the reader alternates between both; pages are cut after any frame."""

    async def play() -> None:
        log = Log()
        for event, gap in first:
            log.append(event, gap=gap)
        async with following(log) as hub:
            position, seen = StreamPosition(0, FRAMES_MAX), list[str]()
            for event in data.draw(st.lists(st.one_of(made_events, renamings))):
                log.append(event)
                await wait_all_tasks_blocked()
                if not data.draw(st.booleans()):
                    continue
                page = await hub.page_after(position, wanted)
                got = frames_in(page.data)
                kept = got[: data.draw(st.integers(0, len(got)))]
                seen += [frame.id for frame in kept]
                if len(kept) == len(got):
                    position = page.position
                elif kept:
                    position = position_after_id(kept[-1].id) or position
            rest, _ = await read(hub, position, wanted)
            assert seen + [frame.id for frame in rest] == frame_ids(log, wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub_module, "WINDOW_EVENTS_MAX", 6)
        patch.setattr(hub_module, "LOGGED_EVENTS", 2)
        patch.setattr(hub_module, "PAGE_EVENTS", 2)
        patch.setattr(hub_module, "PAGE_BYTES", 900)
        trio.run(play, clock=MockClock(autojump_threshold=0))


OF_RUN, OF_SESSION = delta("sess-1", "run-1"), events.SessionUpdated(session_id="sess-1", name="n")
DELETED = events.SessionDeleted(session_id="sess-1")


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        (ALL, [OF_RUN, OF_SESSION, DELETED]),
        (Query("sess-1"), [OF_RUN, OF_SESSION, DELETED]),
        (Query("sess-2"), []),
        (Query(None, "run-1"), [OF_RUN]),
        (Query(None, "run-2"), []),
        (Query("sess-1", "run-1"), [OF_RUN, OF_SESSION, DELETED]),
        (Query("sess-1", "run-2"), [OF_SESSION, DELETED]),
        (Query("sess-2", "run-1"), []),
        (Query("sess-1", "run-1", only_run=True), [OF_RUN, DELETED]),
        (Query("sess-1", "run-2", only_run=True), [DELETED]),
    ],
)
def test_events_without_a_run_match_a_run_query_that_names_their_session(
    wanted: StreamQuery, taken: list[Event]
) -> None:
    for event in (OF_RUN, OF_SESSION, DELETED):
        assert wanted.matches(rendered_of(line_of(event))) == (event in taken)


async def test_events_in_the_window_are_not_read_from_the_log() -> None:
    log = Log()
    async with following(log) as hub:
        for _ in range(100):
            log.append(delta())
        await wait_all_tasks_blocked()
        for _ in range(50):
            frames, _ = await read(hub, StreamPosition(0, FRAMES_MAX))
            assert len(frames) == 100
    assert log.reads == 0


async def test_of_a_deleted_session_only_the_deletion_is_sent() -> None:
    log = Log()
    async with following(log) as hub:
        log.append(delta("sess-1"))
        log.append(delta("sess-2"))
        log.append(events.SessionDeleted(session_id="sess-1"))
        await wait_all_tasks_blocked()
        frames, _ = await read(hub, StreamPosition(0, FRAMES_MAX))
    assert [(f.type, f.properties["sessionID"]) for f in frames] == [
        ("message.part.updated", "sess-2"),
        ("session.deleted", "sess-1"),
    ]


@pytest.mark.parametrize(
    "wanted", [Query("sess-1", "run-1"), Query("sess-1", "run-1", only_run=True)]
)
async def test_a_run_stream_ends_when_its_session_is_deleted(wanted: StreamQuery) -> None:
    log = Log()
    async with following(log) as hub:
        log.append(started())
        log.append(events.SessionDeleted(session_id="sess-1"))
        await wait_all_tasks_blocked()
        with trio.fail_after(WAIT_SECONDS):
            stream = stream_pages(hub, wanted, StreamPosition(0, FRAMES_MAX), ends_with_run=True)
            chunks = [chunk async for chunk in stream]
    assert [frame.type for frame in frames_in(b"".join(chunks))] == ["session.deleted"]


async def test_a_reader_is_woken_only_by_matching_events() -> None:
    log = Log()
    async with following(log) as hub:
        woken = []

        async def wait(wanted: StreamQuery) -> None:
            position = await hub.wait_after(StreamPosition(hub.head, FRAMES_MAX), wanted, 1e9)
            woken.append((wanted, position.seq))

        async with trio.open_nursery() as nursery:
            for wanted in (ALL, Query("sess-1"), Query("sess-2"), Query(None, "run-2")):
                nursery.start_soon(wait, wanted)
            await wait_all_tasks_blocked()
            log.append(quiet())
            await wait_all_tasks_blocked()
            assert woken == []
            log.append(delta("sess-1", "run-1"))
            await wait_all_tasks_blocked()
            assert {wanted for wanted, _ in woken} == {ALL, Query("sess-1")}
            log.append(delta("sess-2", "run-2"))
            await wait_all_tasks_blocked()
        # Earlier events did not match them, and need not be read again.
        assert woken[2:] in (
            [(Query("sess-2"), 2), (Query(None, "run-2"), 2)],
            [(Query(None, "run-2"), 2), (Query("sess-2"), 2)],
        )


async def test_the_window_forgets_readers_that_have_left(autojump_clock: MockClock) -> None:
    log = Log()
    async with following(log) as hub:
        for number in range(50):
            await hub.wait_after(StreamPosition(0, FRAMES_MAX), Query(f"sess-{number}"), 1)
        assert hub._window._waiting == {}


async def test_a_silent_stream_has_a_keepalive_every_ten_seconds(
    autojump_clock: MockClock,
) -> None:
    log = Log()
    async with following(log) as hub:
        stream = stream_pages(
            hub, Query("sess-1"), StreamPosition(0, FRAMES_MAX), ends_with_run=False
        )
        start = trio.current_time()
        for count in (1, 2):
            assert await anext(stream) == b":\n\n"
            assert trio.current_time() - start == pytest.approx(10 * count)
        # Events of other sessions do not replace a keepalive.
        async with trio.open_nursery() as nursery:

            async def be_busy() -> None:
                while True:
                    await trio.sleep(3)
                    log.append(delta("sess-2"))

            nursery.start_soon(be_busy)
            assert await anext(stream) == b":\n\n"
            assert trio.current_time() - start == pytest.approx(30)
            nursery.cancel_scope.cancel()
        await trio.sleep(100)  # a stalled reader receives none for that time
        log.append(delta("sess-1"))
        await wait_all_tasks_blocked()
        assert [frame.type for frame in frames_in(await anext(stream))] == ["message.part.updated"]
        before = trio.current_time()
        assert await anext(stream) == b":\n\n"
        assert trio.current_time() - before == pytest.approx(10)
        await stream.aclose()


async def test_a_burst_is_sent_in_few_writes_and_its_first_event_without_delay(
    autojump_clock: MockClock,
) -> None:
    log = Log()
    async with following(log) as hub, trio.open_nursery() as nursery:
        written: list[tuple[float, int]] = []

        async def read_on() -> None:
            stream = stream_pages(hub, ALL, StreamPosition(0, FRAMES_MAX), ends_with_run=True)
            async for chunk in stream:
                frames = len(frames_in(chunk))
                written.append((trio.current_time(), frames))

        nursery.start_soon(read_on)
        await trio.sleep(1)
        start = trio.current_time()
        for _ in range(100):
            log.append(delta())
            await trio.sleep(0.001)
        log.append(ended())
    assert written[0] == (start, 1)
    assert sum(frames for _, frames in written) == 103
    assert len(written) <= 10


async def test_streams_end_when_the_daemon_is_gone(autojump_clock: MockClock) -> None:
    log = Log()
    async with following(log) as hub:
        log.append(delta())
        await wait_all_tasks_blocked()
        log.end(ConnectionLost("gone"))
        with trio.fail_after(60):
            stream = stream_pages(hub, ALL, StreamPosition(0, FRAMES_MAX), ends_with_run=False)
            chunks = [chunk async for chunk in stream]
    assert len(frames_in(b"".join(chunks))) == 1


async def test_readers_of_a_replaced_log_continue_with_the_new_one(
    autojump_clock: MockClock,
) -> None:
    log = Log()
    async with following(log) as hub:
        for _ in range(10):
            log.append(delta())
        await wait_all_tasks_blocked()
        stream = stream_pages(hub, ALL, StreamPosition(10, FRAMES_MAX), ends_with_run=False)
        assert await anext(stream) == b":\n\n"
        log.lines, log.head = [], 3
        log.end(Refused("command_rejected", "cursor_beyond_head", None, None))
        await wait_all_tasks_blocked()
        log.append(started())
        with trio.fail_after(60):
            chunk = await anext(stream)
        assert [frame.id for frame in frames_in(chunk)] == ["32", "33"]
        await stream.aclose()


async def test_the_window_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "WINDOW_BYTES_MAX", 100_000)
    log = Log()
    async with following(log) as hub:
        for _ in range(100):
            log.append(delta(words="x" * 5000))
            await wait_all_tasks_blocked()
            assert sum(event.size for event in hub._window.events) == hub._window.size <= 120_000
        frames, _ = await read(hub, StreamPosition(0, FRAMES_MAX))
    assert len(frames) == 100
    assert log.reads > 0


async def test_a_page_is_bounded_but_an_event_is_never_cut() -> None:
    log = Log()
    async with following(log) as hub:
        for size in (10, 200_000, 10):
            log.append(delta(words="x" * size))
        await wait_all_tasks_blocked()
        position, sizes = StreamPosition(0, FRAMES_MAX), []
        while position.after < hub.head:
            page = await hub.page_after(position, ALL)
            sizes.append([len(frame.properties["delta"]) for frame in frames_in(page.data)])
            position = page.position
    assert sizes == [[10], [200_000], [10]]
