from __future__ import annotations

import pytest
import trio
import trio.testing

from nousd.errors import ProviderError
from nousd.providers.http.delta_coalescer import (
    CHARS_WAITING_MAX,
    PIECES_WAITING_MAX,
    Put,
    deliver,
    join_deltas,
)
from nousd.providers.interface import Finished, Piece, ReasoningDelta, TextDelta, ToolCallPiece
from tests.harness.daemon import WAIT_SECONDS
from tests.providers.helpers import Collector, text_of

CALL = ToolCallPiece("c", "read", "{}")


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], []),
        ([TextDelta("a"), TextDelta(" "), TextDelta("b")], [TextDelta("a b")]),
        (
            [ReasoningDelta("a"), ReasoningDelta("b"), TextDelta("c"), ReasoningDelta("d")],
            [ReasoningDelta("ab"), TextDelta("c"), ReasoningDelta("d")],
        ),
        (
            [TextDelta("a"), CALL, CALL, TextDelta("b")],
            [TextDelta("a"), CALL, CALL, TextDelta("b")],
        ),
        ([TextDelta("a"), Finished("stop")], [TextDelta("a"), Finished("stop")]),
    ],
)
def test_only_adjacent_deltas_of_one_kind_are_joined(
    pieces: list[Piece], expected: list[Piece]
) -> None:
    assert list(join_deltas(pieces)) == expected


async def test_deltas_that_arrive_together_are_joined() -> None:
    async def read(put: Put) -> None:
        for text in "abc":
            await put(TextDelta(text))
        await trio.testing.wait_all_tasks_blocked()
        for text in "de":
            await put(TextDelta(text))

    received = Collector()
    await deliver(read, received)
    assert text_of(received.pieces) == "abcde"
    assert received.pieces[-1] == TextDelta("de")


async def test_a_slow_receiver_slows_down_the_reading() -> None:
    put_count = 0
    go_on = trio.Event()

    async def read(put: Put) -> None:
        nonlocal put_count
        for _ in range(PIECES_WAITING_MAX * 3):
            await put(CALL)
            put_count += 1

    async def receive(piece: Piece) -> None:
        await go_on.wait()

    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver, read, receive)
            await trio.testing.wait_all_tasks_blocked()
            assert put_count <= PIECES_WAITING_MAX * 2 + 2
            go_on.set()
    assert put_count == PIECES_WAITING_MAX * 3


async def test_a_failure_comes_after_all_pieces_read_before_it() -> None:
    failure = ProviderError("boom")

    async def read(put: Put) -> None:
        await put(TextDelta("a"))
        await put(CALL)
        raise failure

    received = Collector()
    with pytest.raises(ProviderError) as caught:
        await deliver(read, received)
    assert caught.value is failure
    assert received.pieces == [TextDelta("a"), CALL]


async def test_a_slow_receiver_holds_long_deltas_back_by_their_length() -> None:
    put_chars = 0
    go_on = trio.Event()
    text = "x" * (CHARS_WAITING_MAX // 4)

    async def read(put: Put) -> None:
        nonlocal put_chars
        for _ in range(40):
            await put(TextDelta(text))
            put_chars += len(text)

    received = Collector()

    async def receive(piece: Piece) -> None:
        await go_on.wait()
        await received(piece)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver, read, receive)
        await trio.testing.wait_all_tasks_blocked()
        assert put_chars <= 2 * CHARS_WAITING_MAX + len(text)
        go_on.set()
    assert text_of(received.pieces) == text * 40


@pytest.mark.parametrize("pieces", [1, PIECES_WAITING_MAX * 3])
async def test_an_error_of_the_receiver_is_raised_unchanged_and_ends_the_reading(
    pieces: int,
) -> None:
    cancelled = False

    async def read(put: Put) -> None:
        nonlocal cancelled
        try:
            for _ in range(pieces):
                await put(CALL)
            await trio.sleep_forever()
        except trio.Cancelled:
            cancelled = True
            raise

    async def receive(piece: Piece) -> None:
        raise ZeroDivisionError

    with trio.fail_after(WAIT_SECONDS), pytest.raises(ZeroDivisionError):
        await deliver(read, receive)
    assert cancelled


async def test_cancelling_a_delivery_ends_it() -> None:
    async def read(put: Put) -> None:
        await put(TextDelta("a"))
        await trio.sleep_forever()

    received = Collector()
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver, read, received)
            await received.wait_for(TextDelta)
            nursery.cancel_scope.cancel()
    assert received.pieces == [TextDelta("a")]
