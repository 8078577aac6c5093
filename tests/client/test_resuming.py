from __future__ import annotations

import math

import pytest

from nousd.client.resuming import Backoff, Retry, dice, may_heal, silence_of
from nousd.errors import (
    AnswerInvalid,
    AnswerTimedOut,
    ClientError,
    ConnectionLost,
    DaemonUnreachable,
    Refused,
)


def never() -> float:
    return 0.0


def always() -> float:
    return 1.0


def test_waits_grow_up_to_a_bound() -> None:
    backoff = Backoff(Retry(first=0.1, longest=1.0), never)
    waits = [backoff.wait(0.0) for _ in range(200)]
    assert waits[:7] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert set(waits[7:]) == {1.0}
    assert backoff.attempts == 200


def test_jitter_shortens_a_wait_by_up_to_half() -> None:
    backoff = Backoff(Retry(first=0.1, longest=1.0), always)
    assert [backoff.wait(0.0) for _ in range(4)] == [0.0, 0.05, 0.1, 0.2]
    assert all(0.0 <= dice() <= 1.0 for _ in range(1000))


def test_retrying_ends_after_give_up_seconds_without_a_success() -> None:
    backoff = Backoff(Retry(first=4.0, longest=4.0, give_up=10.0), never)
    assert [backoff.wait(now) for now in (100.0, 105.0, 109.0)] == [0.0, 4.0, 1.0]
    assert backoff.wait(110.0) is None


def test_a_success_resets_the_wait_and_the_attempt_count() -> None:
    backoff = Backoff(Retry(first=0.1, give_up=10.0), never)
    for now in (0.0, 1.0, 9.0):
        backoff.wait(now)
    backoff.reset()
    assert backoff.wait(20.0) == 0.0
    assert backoff.attempts == 1


@pytest.mark.parametrize(("lasted", "waits"), [(59.0, None), (61.0, 0.0)])
def test_only_a_connection_of_a_minute_resets_the_backoff(
    lasted: float, waits: float | None
) -> None:
    backoff = Backoff(Retry(first=0.1, give_up=50.0), never)
    assert backoff.wait(0.0) == 0.0
    backoff.on_connected(1.0)
    assert backoff.wait(1.0 + lasted) == waits


def test_a_give_up_of_zero_allows_no_attempt() -> None:
    assert Backoff(Retry(give_up=0.0)).wait(0.0) is None


@pytest.mark.parametrize(
    "error",
    [
        ConnectionLost("x"),
        DaemonUnreachable("x"),
        AnswerTimedOut("x"),
        Refused("shutting_down", "the daemon is stopping"),
        Refused("command_rejected", "too_many_connections"),
    ],
)
def test_temporary_errors_may_heal(error: ClientError) -> None:
    assert may_heal(error)


@pytest.mark.parametrize(
    "error",
    [
        AnswerInvalid("x"),
        Refused("command_rejected", "cursor_beyond_head"),
        Refused("invalid_payload", "x"),
        Refused("session_not_found", "x"),
    ],
)
def test_permanent_errors_do_not_heal(error: ClientError) -> None:
    assert not may_heal(error)


def test_silence_is_three_missed_keepalives() -> None:
    assert silence_of(10) == 30
    assert silence_of(None) == math.inf
