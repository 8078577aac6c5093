from __future__ import annotations

import math
import threading
from pathlib import Path

import pytest

from nousd.client.blocking_follow import Follower
from nousd.client.resuming import Interruption, Retry
from nousd.errors import AnswerInvalid, AnswerTimedOut, ConnectionLost, DaemonUnreachable, Refused
from tests.harness.fake_daemon import FakeDaemon, event, ok, refused

AT_ONCE = Retry(first=0.0, longest=0.0)


def test_a_follower_resumes_after_its_last_event_on_each_reconnection(daemon: FakeDaemon) -> None:
    """The fake daemon sends its published events to each subscriber, then closes."""
    interruptions: list[Interruption] = []
    daemon.publish(event(1, "status", message="x"))
    daemon.publish(None)
    with Follower(
        daemon.socket_path, {"types": "all"}, retry=AT_ONCE, on_interruption=interruptions.append
    ) as events:
        received = iter(events)
        # The fake daemon ignores the cursor: event 1 comes with each connection.
        assert [next(received).id for _ in range(3)] == ["evt-1"] * 3
        assert events.cursor == "evt-1"
    wanted = [request["payload"] for request in daemon.heard]
    keepalive = {"types": "all", "keepalive_seconds": 15.0}
    assert wanted == [keepalive, *[{**keepalive, "after": "evt-1"}] * 2]
    assert [(type(item.error), item.cursor, item.attempt) for item in interruptions] == [
        (ConnectionLost, "evt-1", 1),
        (ConnectionLost, "evt-1", 2),
    ]


def test_a_follower_resumes_after_a_daemon_restart(folder: Path) -> None:
    path = folder / "nousd.sock"
    with FakeDaemon(folder) as first:
        first.publish(event(1, "status", message="x"))
        events = Follower(path, {}, retry=Retry(first=0.001, longest=0.001))
        assert events.next_event().id == "evt-1"
    for socket in (path, Path(f"{path}.events")):
        socket.unlink()
    received: list[str] = []
    waiting = threading.Thread(target=lambda: received.append(events.next_event().id))
    waiting.start()
    with FakeDaemon(folder) as second:
        second.publish(event(2, "status", message="x"))
        waiting.join(10)
        events.close()
        assert second.heard[0]["payload"]["after"] == "evt-1"
    assert received == ["evt-2"]


def test_a_missing_daemon_at_the_first_connection_is_an_error_at_once(folder: Path) -> None:
    with pytest.raises(DaemonUnreachable):
        Follower(folder / "none", {})


def test_a_follower_gives_up_on_a_daemon_that_does_not_return(folder: Path) -> None:
    with FakeDaemon(folder) as daemon:
        events = Follower(
            daemon.socket_path, {}, retry=Retry(first=0.001, longest=0.001, give_up=0.02)
        )
    with pytest.raises(DaemonUnreachable):
        events.next_event()
    events.close()


def test_a_permanent_refusal_is_an_error(daemon: FakeDaemon) -> None:
    daemon.publish(None)
    with Follower(daemon.socket_path, {}, retry=AT_ONCE) as events:
        daemon.on["subscribe"] = refused("command_rejected", "cursor_beyond_head")
        with pytest.raises(Refused, match="cursor_beyond_head"):
            events.next_event()


def test_an_invalid_line_is_an_error(daemon: FakeDaemon) -> None:
    daemon.publish(b"garbage\n")
    with Follower(daemon.socket_path, {}) as events, pytest.raises(AnswerInvalid):
        events.next_event()


def test_a_timed_out_wait_for_an_event_can_be_repeated(daemon: FakeDaemon) -> None:
    with Follower(daemon.socket_path, {}) as events:
        with pytest.raises(AnswerTimedOut):
            events.next_event(timeout_seconds=0.01)
        daemon.publish(event(1, "status", message="late"))
        assert events.next_event().id == "evt-1"
    assert len(daemon.heard) == 1


def test_a_wait_for_an_event_times_out_while_no_daemon_runs(folder: Path) -> None:
    with FakeDaemon(folder) as daemon:
        events = Follower(daemon.socket_path, {})
    with pytest.raises(AnswerTimedOut):
        events.next_event(timeout_seconds=0.05)
    events.close()


def test_a_follower_reconnects_when_keepalives_stop(daemon: FakeDaemon) -> None:
    interruptions: list[Interruption] = []

    def record(interruption: Interruption) -> None:
        interruptions.append(interruption)
        events._silence_seconds = math.inf
        daemon.publish(event(1, "status", message="in the next connection"))

    with Follower(daemon.socket_path, {}, retry=AT_ONCE, on_interruption=record) as events:
        assert events._silence_seconds == 45
        events._silence_seconds = 0.01
        assert events.next_event().id == "evt-1"
    assert "no sign of life for 0.01 seconds" in str(interruptions[0].error)


def test_a_keepalive_advances_the_cursor(daemon: FakeDaemon) -> None:
    daemon.publish(ok("keepalive", {"cursor": "evt-7", "head": "evt-7"})({"id": "s1"}))
    daemon.publish(None)
    with Follower(daemon.socket_path, {}, retry=Retry(give_up=0)) as events:
        with pytest.raises(ConnectionLost):
            events.next_event()
        assert events.cursor == "evt-7"
