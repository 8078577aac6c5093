"""The window of the newest events that both hubs use, and the wake-up of its readers."""

from __future__ import annotations

from typing import NamedTuple

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from nousd.event_window import EventWindow, Notifier, Topic, fill_page


class Item(NamedTuple):
    seq: int
    session_id: str = "s"
    run_id: str | None = None
    size: int = 1


def window_of(*items: Item, head: int = 0) -> EventWindow[Item]:
    window: EventWindow[Item] = EventWindow(head)
    window.publish(items)
    return window


gaps = st.lists(st.integers(1, 3), max_size=30)


@given(
    gaps=gaps, events_max=st.integers(1, 12), position=st.integers(0, 100), limit=st.integers(1, 5)
)
def test_a_page_has_all_events_from_its_position_up_to_the_returned_number(
    gaps: list[int], events_max: int, position: int, limit: int
) -> None:
    window: EventWindow[Item] = EventWindow()
    seqs: list[int] = []
    for gap in gaps:
        seqs.append(window.head + gap)
        window.publish([Item(seqs[-1])])
        window.trim(events_max, 1000)
        assert len(window.events) <= events_max
    position = max(window.start, min(position, window.head))
    found, until = window.after(position, limit)
    assert [event.seq for event in found] == [seq for seq in seqs if position < seq <= until]
    assert len(found) <= limit
    assert until > position or until == window.head


@given(sizes=st.lists(st.integers(1, 20), max_size=40), bytes_max=st.integers(1, 60))
def test_the_window_counts_its_bytes_and_stays_within_the_limit(
    sizes: list[int], bytes_max: int
) -> None:
    window: EventWindow[Item] = EventWindow()
    for seq, size in enumerate(sizes, 1):
        window.publish([Item(seq, size=size)])
        window.trim(1000, bytes_max)
        assert window.size == sum(event.size for event in window.events) <= bytes_max
        assert all(event.seq > window.start for event in window.events)
        assert window.head == seq


def test_events_of_a_forgotten_session_are_removed_without_moving_the_start() -> None:
    window = window_of(Item(1, "a"), Item(2, "b"), Item(3, "a"))
    window.forget("a")
    assert window.start == 0
    assert window.after(0, 10) == ([Item(2, "b")], 3)
    assert window.size == 1


def test_a_window_can_skip_numbers_of_other_events() -> None:
    window = window_of(Item(1), Item(2))
    window.skip_to(9)
    assert window.after(1, 10) == ([Item(2)], 9)
    assert window.after(0, 1) == ([Item(1)], 1)


async def test_an_event_wakes_only_readers_of_everything_its_session_or_its_run() -> None:
    window = window_of()
    topics = [Topic(), Topic("s"), Topic(None, "r"), Topic("t"), Topic(None, "q")]
    readers = {topic: Notifier() for topic in topics}
    async with trio.open_nursery() as nursery:
        for topic, notifier in readers.items():
            nursery.start_soon(window.wait, notifier, topic)
        await wait_all_tasks_blocked()
        window.publish([Item(4, "s", "r")])
        assert set(window._waiting) == {Topic("t"), Topic(None, "q")}
        window.wake_all()
    assert [reader.woken_by for reader in readers.values()] == [4, 4, 4, None, None]
    assert window._waiting == {}


async def test_a_cancelled_reader_is_removed_and_others_keep_waiting() -> None:
    window = window_of()
    async with trio.open_nursery() as nursery:
        other = Notifier()
        nursery.start_soon(window.wait, other, Topic("s"))
        await wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await window.wait(Notifier(), Topic("s"))
        assert set(window._waiting) == {Topic("s")}
        window.publish([Item(1)])
    assert other.woken_by == 1


async def test_a_notification_also_ends_the_wait_for_events() -> None:
    window = window_of()
    notifier = Notifier()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(window.wait, notifier)
        await wait_all_tasks_blocked()
        notifier.notify()
    assert window._waiting == {}


async def test_a_restarted_window_is_empty_and_wakes_every_reader() -> None:
    window = window_of(Item(8), Item(9))
    notifier = Notifier()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(window.wait, notifier, Topic("t"))
        await wait_all_tasks_blocked()
        window.restart(3)
    assert (window.start, window.head, list(window.events)) == (3, 3, [])


@given(sizes=st.lists(st.integers(0, 9), max_size=12), bytes_max=st.integers(1, 20))
def test_pages_contain_every_event_once_within_the_byte_limit_except_single_longer_ones(
    sizes: list[int], bytes_max: int
) -> None:
    events = [Item(seq, size=size) for seq, size in enumerate(sizes, 1)]
    received, position = b"", 0
    while position < len(events):
        rest = events[position:]
        data, reached = fill_page(rest, len(events), lambda event: b"x" * event.size, bytes_max)
        assert len(data) <= bytes_max or len(data) in sizes
        assert reached > position
        received, position = received + data, reached
    assert received == b"x" * sum(sizes)
