"""The command socket: one response for each line, in order, whatever the line contains."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from nousd.daemon.app import shut_down
from nousd.daemon.commands import HANDLERS
from nousd.errors import WriteFailed
from nousd.store.memory import store as memory
from tests.daemon.scripted import ScriptedProvider, says
from tests.harness.daemon import WAIT_SECONDS, Client, Daemon, memory_daemon, socket_daemon

MEGABYTE = 1024 * 1024


@pytest.fixture
def model() -> ScriptedProvider:
    return ScriptedProvider()


async def not_json(_: dict[str, Any]) -> Any:
    return {"no JSON": object()}


@pytest.fixture(params=["memory", "sockets"])
async def daemon(
    request: pytest.FixtureRequest, short_folder: Path, model: ScriptedProvider
) -> AsyncIterator[Daemon]:
    """A daemon with a scripted model."""
    options: Any = {"provider": model, "extension_commands": {"not_json": not_json}}
    run = (
        memory_daemon(workdir=short_folder, **options)
        if request.param == "memory"
        else socket_daemon(short_folder, **options)
    )
    async with run as daemon:
        yield daemon


def line(request_id: str, type: str, **payload: Any) -> bytes:
    return (
        json.dumps({"v": "1", "id": request_id, "type": type, "payload": payload}).encode() + b"\n"
    )


async def answers(client: Client, count: int) -> list[dict[str, Any]]:
    return [await client.receive() for _ in range(count)]


# --- order -----------------------------------------------------------------------------------


async def test_valid_and_invalid_pipelined_lines_are_answered_in_order(client: Client) -> None:
    await client.send(
        line("a", "ping")
        + line("b", "new_session", name="n")
        + b"no json\n"
        + line("c", "frobnicate")
        + line("d", "prompt")
        + line("e", "get_state", session_id="nobody's")
        + line("f", "get_state")
    )
    outcomes = [
        (answer["id"], answer["type"] if answer["ok"] else answer["error"]["code"])
        for answer in await answers(client, 7)
    ]
    assert outcomes == [
        ("a", "pong"),
        ("b", "session"),
        ("", "invalid_command"),
        ("c", "invalid_command"),
        ("d", "invalid_payload"),
        ("e", "session_not_found"),
        ("f", "state"),
    ]


async def test_a_failed_write_among_pipelined_commands_fails_only_its_own_command(
    short_folder: Path, model: ScriptedProvider
) -> None:
    commits = 0

    def third_fails() -> None:
        nonlocal commits
        commits += 1
        if commits == 3:
            raise WriteFailed("an error of a moment")

    async with (
        memory.open_store(before_commit=third_fails) as store,
        memory_daemon(workdir=short_folder, provider=model, store=store) as daemon,
    ):
        client = await daemon.connect()
        await client.send(
            line("a", "new_session")
            + line("b", "append_message", text="one")
            + line("c", "ping")
            + line("d", "append_message", text="two", client_message_id="m")
            + line("e", "frobnicate")
            + line("f", "append_message", text="two", client_message_id="m")
            + line("g", "append_message", text="two", client_message_id="m")
        )
        outcomes = [
            (answer["id"], answer["type"] if answer["ok"] else answer["error"]["code"])
            for answer in await answers(client, 7)
        ]
        messages = (await client.request("get_messages"))["messages"]
    assert outcomes == [
        ("a", "session"),
        ("b", "accepted"),
        ("c", "pong"),
        ("d", "session_error"),
        ("e", "invalid_command"),
        ("f", "accepted"),
        ("g", "accepted"),
    ]
    assert [message["text"] for message in messages] == ["one", "two"]


async def test_a_line_may_arrive_byte_by_byte(client: Client) -> None:
    for byte in line("a", "ping"):
        await client.send(bytes([byte]))
    assert (await client.receive())["id"] == "a"


async def test_thousands_of_pings_may_be_written_before_any_answer_is_read(client: Client) -> None:
    count, padding = 1500, "x" * 200
    with trio.fail_after(WAIT_SECONDS):
        await client.send(b"".join(line(f"p{number}-{padding}", "ping") for number in range(count)))
        outcomes = await answers(client, count)
    assert [answer["id"] for answer in outcomes] == [
        f"p{number}-{padding}" for number in range(count)
    ]


async def test_a_pipelined_command_sees_the_effect_of_the_previous_one(client: Client) -> None:
    await client.send(line("a", "new_session", name="n") + line("b", "get_state"))
    created, state = await answers(client, 2)
    assert state["payload"]["session_id"] == created["payload"]["session_id"]


async def test_a_prompt_that_waits_blocks_only_its_own_connection(
    daemon: Daemon, client: Client, model: ScriptedProvider
) -> None:
    await client.send(line("a", "prompt", text="go") + line("b", "ping"))
    other = await daemon.connect()
    await model.calls.wait_waiting()
    assert (await other.request("get_state"))["run_state"] == "running"
    model.answer(says("done"))
    assert [answer["type"] for answer in await answers(client, 2)] == ["result", "pong"]


# --- lines -----------------------------------------------------------------------------------


async def test_a_last_line_without_a_line_feed_is_answered(
    short_folder: Path, model: ScriptedProvider
) -> None:
    async with socket_daemon(short_folder, provider=model) as daemon:
        client = await daemon.connect()
        assert isinstance(client.stream, trio.SocketStream)
        await client.send(line("a", "ping") + line("b", "ping").rstrip(b"\n"))
        await client.stream.send_eof()
        assert [answer["id"] for answer in await answers(client, 2)] == ["a", "b"]
        with pytest.raises(EOFError):
            await client.receive()


async def test_a_line_too_long_gets_one_error_and_the_connection_stays_usable(
    daemon: Daemon,
) -> None:
    daemon.services.line_bytes_max = 200
    client = await daemon.connect()
    await client.send(line("a", "ping", text="x" * 1000) + line("b", "ping"))
    too_long, pong = await answers(client, 2)
    assert too_long["id"] == ""
    assert too_long["error"] == {
        "code": "invalid_command",
        "message": "line_too_long: a line has at most 200 bytes",
    }
    assert pong["id"] == "b"


@pytest.mark.slow
@pytest.mark.parametrize("type", ["ping", "frobnicate"])
async def test_the_memory_of_a_long_line_is_freed_after_its_answer(
    type: str, client: Client
) -> None:
    await client.request("ping")
    tracemalloc.start()
    try:
        before = traced_bytes()
        await client.send(line("a", type, text="x" * 4 * MEGABYTE))
        assert (await client.receive())["id"] == "a"
        await client.send(b'{"half a line":')
        await wait_all_tasks_blocked()
        assert traced_bytes() - before < MEGABYTE
    finally:
        tracemalloc.stop()


def traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


# --- internal errors -------------------------------------------------------------------------


async def test_an_internal_error_is_answered_with_the_request_id_and_logged_with_the_command(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setitem(HANDLERS, "get_tree", broken)
    error = await client.refusal("get_tree")
    assert error == {
        "code": "internal_error",
        "message": "internal error",
        "cause": "get_tree failed; the daemon's log says more",
    }
    assert "a fault of ours in get_tree" in caplog.text
    assert "ZeroDivisionError: a bug" in caplog.text
    assert await client.request("ping") == {"message": "pong"}


async def test_an_answer_that_cannot_be_encoded_is_an_internal_error(client: Client) -> None:
    error = await client.refusal("extension_command", name="not_json")
    assert error["code"] == "internal_error"
    assert await client.request("ping") == {"message": "pong"}


async def test_an_internal_error_while_decoding_a_line_has_no_request_id_and_ends_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await client.request("ping")

    def broken(_: bytes) -> Any:
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr("nousd.daemon.transport.connection.decode_request", broken)
        await client.send(line("a", "ping"))
        answer = await client.receive()
    assert (answer["id"], answer["error"]["code"]) == ("", "internal_error")
    assert "a fault of ours in a line" in caplog.text
    assert await client.request("ping") == {"message": "pong"}


# --- ends of connections ---------------------------------------------------------------------


async def test_a_run_outlives_the_connection_that_waits_for_it(
    daemon: Daemon, client: Client, model: ScriptedProvider
) -> None:
    events = await daemon.watch()
    await client.ask("prompt", text="go")
    await model.calls.wait_waiting()
    await client.aclose()
    await wait_all_tasks_blocked()
    model.answer(says("done"))
    assert (await events.run())[-1]["payload"]["status"] == "completed"


async def test_a_stopping_daemon_refuses_commands_as_shutting_down(
    daemon: Daemon, client: Client
) -> None:
    daemon.services.stopping.set()
    await client.send(line("a", "new_session") + line("b", "frobnicate"))
    refused, unknown = await answers(client, 2)
    assert (refused["id"], refused["error"]["code"]) == ("a", "shutting_down")
    assert unknown["error"]["code"] == "invalid_command"
    assert daemon.services.hub.head == 0


async def test_at_shutdown_a_waiting_prompt_is_answered_before_the_connection_closes(
    daemon: Daemon, client: Client, model: ScriptedProvider
) -> None:
    idle = await daemon.connect()
    await client.send(line("a", "prompt", text="go") + line("b", "ping"))
    await model.calls.wait_waiting()
    await shut_down(daemon.services)
    result, refused = await answers(client, 2)
    assert (result["id"], result["payload"]["status"]) == ("a", "interrupted")
    assert (refused["id"], refused["error"]["code"]) == ("b", "shutting_down")
    for connection in (client, idle):
        with pytest.raises(EOFError):
            await connection.receive()


async def test_an_incomplete_line_at_shutdown_is_not_answered(
    daemon: Daemon, client: Client
) -> None:
    await client.send(line("a", "ping").rstrip(b"\n"))
    await wait_all_tasks_blocked()
    await shut_down(daemon.services)
    with pytest.raises(EOFError):
        await client.receive()


# --- resending outside the active session ----------------------------------------------------


@pytest.mark.parametrize("type", ["steer", "follow_up"])
@pytest.mark.parametrize("names_session", [False, True])
async def test_a_resent_input_for_a_run_outside_the_active_session_is_accepted_once(
    type: str, names_session: bool, client: Client, model: ScriptedProvider
) -> None:
    started = await client.request("prompt", text="go", wait=False)
    await client.request("new_session")
    target = {"session_id": started["session_id"]} if names_session else {}
    first = await client.request(type, text="once", client_message_id="m1", **target)
    again = await client.request(type, text="once", client_message_id="m1", **target)
    assert again == {**first, "repeated": True}
    queue = await client.request("get_queue", session_id=started["session_id"])
    assert [item["text"] for item in queue["inputs"]] == ["once"]
