from __future__ import annotations

import gc
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from nousd.client.blocking import Connection, Subscription
from nousd.errors import AnswerInvalid, AnswerTimedOut, ConnectionLost, DaemonUnreachable, Refused
from nousd.wire.commands import Ping, Prompt
from nousd.wire.responses import Accepted, Pong, Result
from tests.harness.fake_daemon import FakeDaemon, event, ok, refused, says

NEVER_SECONDS = 0.01
"""The timeout of a wait that is expected to time out."""


def test_a_request_returns_its_answer(daemon: FakeDaemon) -> None:
    daemon.on["get_run"] = ok("run", {"run": {"run_id": "run-1"}})
    with Connection(daemon.socket_path) as connection:
        answer = connection.request("get_run", {"run_id": "run-1"})
        assert connection.request("ping", {}).payload == {"message": "pong"}
    assert (answer.type, answer.payload) == ("run", {"run": {"run_id": "run-1"}})
    assert daemon.heard[0] == {
        "v": "1",
        "id": "c1",
        "type": "get_run",
        "payload": {"run_id": "run-1"},
    }


def test_ask_returns_the_answer_struct_or_raises_for_another_type(daemon: FakeDaemon) -> None:
    daemon.on["prompt"] = ok("accepted", {"command": "prompt", "run_id": "run-1"})
    with Connection(daemon.socket_path) as connection:
        assert connection.ask(Ping()) == Pong(message="pong")
        accepted = connection.ask(Prompt(text="hi", wait=False), Accepted)
        assert accepted.run_id == "run-1"
        with pytest.raises(AnswerInvalid, match="answered accepted, not what was asked for"):
            connection.ask(Prompt(text="hi"), Result)
    assert daemon.heard[1]["payload"]["text"] == "hi"


def test_a_missing_daemon_is_reported_with_the_socket_path(folder: Path) -> None:
    with pytest.raises(DaemonUnreachable, match=f"no daemon listens on {folder}/none: No such"):
        Connection(folder / "none")


def test_a_socket_path_that_is_too_long_is_reported(folder: Path) -> None:
    with pytest.raises(DaemonUnreachable, match="path too long"):
        Connection(folder / ("x" * 200))


def test_a_refusal_leaves_the_connection_usable(daemon: FakeDaemon) -> None:
    daemon.on["steer"] = refused("command_rejected", "no_active_run")
    with Connection(daemon.socket_path) as connection:
        with pytest.raises(Refused, match="command_rejected: no_active_run"):
            connection.request("steer", {"text": "x"})
        assert connection.request("ping", {}).type == "pong"


def test_an_error_without_an_id_answers_the_request(daemon: FakeDaemon) -> None:
    line = b'{"id":"","ok":false,"error":{"code":"invalid_command","message":"line_too_long"}}\n'
    daemon.otherwise = says(line)
    with Connection(daemon.socket_path) as connection, pytest.raises(Refused, match="too_long"):
        connection.request("ping", {})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"garbage\n", "not JSON"),
        (b'{"id":"other","type":"pong","payload":{},"ok":true}\n', "a request that was not sent"),
    ],
)
def test_an_invalid_or_unrelated_answer_is_an_error(
    daemon: FakeDaemon, line: bytes, message: str
) -> None:
    daemon.otherwise = says(line)
    with (
        Connection(daemon.socket_path) as connection,
        pytest.raises(AnswerInvalid, match=message),
    ):
        connection.request("ping", {})


def test_a_connection_closed_by_the_daemon_raises_connection_lost(daemon: FakeDaemon) -> None:
    daemon.otherwise = says(None)
    with Connection(daemon.socket_path) as connection:
        with pytest.raises(ConnectionLost):
            connection.request("ping", {})
        with pytest.raises(ConnectionLost):
            connection.request("ping", {})


def test_a_request_times_out_if_the_daemon_does_not_answer(daemon: FakeDaemon) -> None:
    daemon.otherwise = says(b"")
    with Connection(daemon.socket_path) as connection, pytest.raises(AnswerTimedOut):
        connection.request("ping", {}, timeout_seconds=NEVER_SECONDS)


def test_a_request_times_out_if_the_daemon_does_not_read(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "s"))
        listening.listen()
        with (
            Connection(folder / "s", timeout_seconds=NEVER_SECONDS) as connection,
            pytest.raises(AnswerTimedOut),
        ):
            connection.request("prompt", {"text": "x" * 10_000_000})


def test_events_follow_the_answer_to_subscribe(daemon: FakeDaemon) -> None:
    daemon.before_subscribed = event(1, "status", message="not asked for")
    daemon.on["subscribe"] = ok("subscribed", {"cursor": "evt-1", "head": "evt-3"})
    daemon.publish(event(2, "status", message="one"))
    daemon.publish(event(3, "status", message="two"))
    with Subscription(daemon.socket_path, {"after": "evt-1", "types": "v1"}) as events:
        assert events.subscribed == {"cursor": "evt-1", "head": "evt-3"}
        received = iter(events)
        assert [next(received).id, next(received).payload["message"]] == ["evt-2", "two"]
    assert daemon.heard == [
        {
            "v": "1",
            "id": "s1",
            "type": "subscribe",
            "payload": {"after": "evt-1", "types": "v1"},
        }
    ]


def test_a_changed_subscription_replaces_the_first(daemon: FakeDaemon) -> None:
    with Subscription(daemon.socket_path, {"session_id": "s"}) as events:
        daemon.publish(event(2, "status", message="of the first"))
        assert events.next_event().id == "evt-2"

        def subscribed(request: dict[str, Any]) -> bytes | None:
            daemon.publish(event(3, "status", message="of the second"))
            return ok("subscribed", {"cursor": "evt-2", "head": "evt-2"})(request)

        daemon.on["subscribe"] = subscribed
        events.change({"after": "evt-2", "session_id": "t"})
        assert events.next_event().id == "evt-3"
    assert [request["payload"] for request in daemon.heard] == [
        {"session_id": "s"},
        {"after": "evt-2", "session_id": "t"},
    ]


def test_a_refused_change_of_subscription_is_an_error(daemon: FakeDaemon) -> None:
    with Subscription(daemon.socket_path, {"session_id": "s"}) as events:
        daemon.on["subscribe"] = refused("invalid_payload", "no")
        events.change({"session_id": "t"})
        with pytest.raises(Refused):
            events.next_event()


def test_a_refused_subscription_is_an_error_and_leaves_no_socket_open(daemon: FakeDaemon) -> None:
    daemon.on["subscribe"] = refused("command_rejected", "cursor_beyond_head")
    with pytest.raises(Refused, match="cursor_beyond_head"):
        Subscription(daemon.socket_path, {})
    gc.collect()  # what is left open is a warning now, and so an error


def test_the_end_of_the_event_stream_is_an_error(daemon: FakeDaemon) -> None:
    daemon.publish(None)
    with Subscription(daemon.socket_path, {}) as events, pytest.raises(ConnectionLost):
        events.next_event()


def test_a_timed_out_wait_for_an_event_can_be_repeated(daemon: FakeDaemon) -> None:
    with Subscription(daemon.socket_path, {}) as events:
        with pytest.raises(AnswerTimedOut):
            events.next_event(timeout_seconds=NEVER_SECONDS)
        daemon.publish(event(1, "status", message="late"))
        assert events.next_event().id == "evt-1"


def test_hanging_up_wakes_a_thread_that_waits_for_an_event(daemon: FakeDaemon) -> None:
    outcome: list[str] = []

    def wait() -> None:
        try:
            events.next_event()
        except ConnectionLost as error:
            outcome.append(str(error))

    events = Subscription(daemon.socket_path, {})
    waiting = threading.Thread(target=wait)
    waiting.start()
    events.hang_up()
    waiting.join(10)
    events.close()
    assert len(outcome) == 1
