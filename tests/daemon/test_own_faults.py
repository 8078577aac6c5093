"""An internal error ends at most its run or command, never the daemon."""

from __future__ import annotations

from typing import NoReturn

import pytest

from nousd.wire import events as wire
from nousd.wire.codec.envelope import encode_event_tail
from tests.harness.daemon import Client, Events, of_type
from tests.harness.stub_model import StubModel, error_reply

ANSWER = "stub-reply"


def break_encoding_once(monkeypatch: pytest.MonkeyPatch, kind: type[wire.Event]) -> None:
    """Make the first event of the kind (for messages: that of the answer) impossible to encode."""
    due = [kind]

    def encode_or_fail(event: wire.Event, ts: str) -> bytes:
        if due and isinstance(event, due[0]) and getattr(event, "text", ANSWER) == ANSWER:
            due.clear()
            raise ValueError("a fault of ours")
        return encode_event_tail(event, ts)

    monkeypatch.setattr("nousd.daemon.eventlog.log.encode_event_tail", encode_or_fail)


@pytest.mark.parametrize("kind", [wire.MessageUpdate, wire.MessageEnd, wire.TurnEnd, wire.AgentEnd])
async def test_an_event_that_cannot_be_encoded_fails_only_its_run(
    kind: type[wire.Event], client: Client, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_encoding_once(monkeypatch, kind)
    await client.request("prompt", text="go", wait=False)
    run = await events.run()
    [error] = of_type(run, "error")
    assert error["code"] == "internal_error"
    assert "a fault of ours" not in str(run)
    assert run[-1]["payload"]["status"] == "error"
    assert (await client.request("get_state"))["run_state"] == "idle"
    assert (await client.request("prompt", text="again"))["output"] == ANSWER


async def test_a_run_whose_start_cannot_be_encoded_is_refused_and_the_session_stays_idle(
    client: Client, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_encoding_once(monkeypatch, wire.AgentStart)
    error = await client.refusal("prompt", text="go")
    assert (error["code"], error["message"]) == ("internal_error", "internal error")
    state = await client.request("get_state")
    assert (state["run_state"], state["pending_counts"]) == ("idle", {"steer": 0, "follow_up": 0})
    assert (await client.request("prompt", text="again"))["output"] == ANSWER


async def test_a_run_whose_closing_events_fail_is_logged_as_interrupted(
    client: Client, events: Events, stub: StubModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_named: object) -> NoReturn:
        raise ValueError("a fault of ours")

    stub.script(error_reply(400, "no"))
    with monkeypatch.context() as broken:
        broken.setattr("nousd.daemon.runs.run_loop.closing_events", fail)
        await client.request("prompt", text="go", wait=False)
        run = await events.run()
    assert run[-1]["payload"]["status"] == "interrupted"
    assert (await client.request("get_state"))["run_state"] == "idle"
    assert (await client.request("prompt", text="again"))["output"] == ANSWER
