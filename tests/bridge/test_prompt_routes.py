"""Prompts over HTTP: idempotent starts, options of a run, waiting and streaming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from nousd.bridge.routes import prompts
from nousd.extensions.hooks import HandleInput
from nousd.providers.interface import Provider
from tests.bridge.harness import Bridge, bridge_to, text
from tests.extensions.registering import hooks, on
from tests.harness.daemon import Client, socket_daemon
from tests.harness.stub_model import Gate, StubModel, text_reply, tool_reply

CONTEXT = ("contextRunID", "linked_context_run_id")


async def wait_for_end(bridge: Bridge, session: str) -> None:
    """Wait for the end of the session's run."""
    async with bridge.events(sessionID=session) as frames:
        if (await bridge.get(f"/session/{session}/run"))["active"] is not None:
            await frames.until("session.run.finished")


async def prompt(
    bridge: Bridge, session: str, *, wanted: str | None = None, key: str | None = None, **body: Any
) -> httpx2.Response:
    """Prompt with "go", unless the body has other parts."""
    return await bridge.http.post(
        f"/session/{session}/prompt_async",
        params={} if wanted is None else {"return": wanted},
        headers={} if key is None else {"idempotency-key": key},
        json={"parts": text("go"), **body},
    )


async def user_texts(bridge: Bridge, session: str) -> list[str]:
    """Return the user's texts of a transcript."""
    told = await bridge.get(f"/session/{session}/message")
    return [message["parts"][0]["text"] for message in told if message["info"]["role"] == "user"]


# --- started -------------------------------------------------------------------------------------


async def test_a_started_run_returns_only_its_id_or_a_description_on_request(
    bridge: Bridge,
) -> None:
    session = await bridge.new_session()
    reply = await prompt(bridge, session)
    assert (reply.status_code, reply.content) == (204, b"")
    first = reply.headers["x-tandem-run-id"]
    await wait_for_end(bridge, session)
    reply = await prompt(bridge, session, wanted="run")
    second = reply.headers["x-tandem-run-id"]
    assert second != first
    assert reply.status_code == 202
    assert reply.json() == {
        "runID": second,
        **dict.fromkeys(CONTEXT, f"session-{session}"),
        "attachEventStream": f"/event?sessionID={session}&runID={second}",
    }
    await wait_for_end(bridge, session)
    assert (await prompt(bridge, session, wanted="all")).status_code == 400


async def test_the_active_run_and_a_conflict_name_the_client_of_the_run(
    bridge: Bridge, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("Hel", gate, "lo"))
    session = await bridge.new_session()
    who = {"x-tandem-client-id": "tui-1", "x-tandem-agent-id": "agent-1"}
    body = {"parts": text("go"), "agent": "build"}
    begun = await bridge.http.post(f"/session/{session}/prompt_async", json=body, headers=who)
    await gate.reached()
    now = await bridge.get(f"/session/{session}/run")
    run = now.pop("active")
    watch = f"/event?sessionID={session}&runID={run['runID']}"
    assert run.pop("attachEventStream") == watch
    assert now == dict.fromkeys(CONTEXT, f"session-{session}")
    times = {name: run.pop(name) for name in ("startedAtMs", "lastActivityAtMs")}
    names = {"clientID": "tui-1", "agentID": "agent-1", "agentProfile": "build"}
    assert run == {"runID": begun.headers["x-tandem-run-id"], **names}
    for path in ("prompt_async", "prompt_async?return=run", "prompt_sync"):
        for accept in ("*/*", "text/event-stream"):
            refused = await bridge.http.post(
                f"/session/{session}/{path}",
                json={"parts": text("me too")},
                headers={"accept": accept},
            )
            told = refused.json()
            assert refused.status_code == 409
            assert told["activeRun"].pop("lastActivityAtMs") >= times["lastActivityAtMs"]
            assert told == {
                "error": "Session already has an active run",
                "code": "SESSION_RUN_CONFLICT",
                "retryable": True,
                "sessionID": session,
                "activeRun": {**run, "startedAtMs": times["startedAtMs"]},
                "retryAfterMs": 500,
                "attachEventStream": watch,
            }
    gate.open()
    await wait_for_end(bridge, session)
    assert await user_texts(bridge, session) == ["go"]


async def test_an_unknown_client_is_null_in_a_conflict_and_omitted_from_the_run(
    bridge: Bridge, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("Hel", gate, "lo"))
    session = await bridge.new_session()
    await prompt(bridge, session)
    await gate.reached()
    run = (await bridge.get(f"/session/{session}/run"))["active"]
    assert run.keys() == {"runID", "startedAtMs", "lastActivityAtMs", "attachEventStream"}
    told = (await prompt(bridge, session)).json()["activeRun"]
    assert (told["clientID"], told["agentID"], told["agentProfile"]) == (None, None, None)
    gate.open()
    await wait_for_end(bridge, session)


@pytest.mark.parametrize("headers", [{"x-tandem-correlation-id": "batch-7"}, {}])
async def test_the_usage_of_a_run_has_the_correlation_id_of_its_prompt(
    headers: dict[str, str], bridge: Bridge
) -> None:
    session = await bridge.new_session()
    async with bridge.events(sessionID=session) as frames:
        await bridge.http.post(
            f"/session/{session}/prompt_async", json={"parts": text("go")}, headers=headers
        )
        *_, used = await frames.until("provider.usage")
    assert used.properties["correlationID"] == headers.get("x-tandem-correlation-id")


# --- options of one run --------------------------------------------------------------------------


@pytest.mark.behaviour("http_options_hold_for_one_run")
async def test_options_apply_to_one_run_only(bridge: Bridge, stub: StubModel) -> None:
    session = await bridge.new_session(temperature=1)
    options = {
        "model": {"providerID": "openai", "modelID": "stub-2"},
        "toolAllowlist": ["read"],
        "toolMode": "required",
        "temperature": 0.5,
        "top_p": 0.25,
        "max_tokens": 99,
        "contextMode": "full",
        "writeRequired": True,
        "prewriteRequirements": {"any": "thing"},
        "strictKbGrounding": False,
    }
    await bridge.post(f"/session/{session}/prompt_sync", parts=text("go"), **options)
    body = (await stub.next_request()).json
    assert (body["model"], body["temperature"], body["top_p"]) == ("stub-2", 0.5, 0.25)
    assert 99 in (body.get("max_tokens"), body.get("max_completion_tokens"))
    assert [tool["function"]["name"] for tool in body["tools"]] == ["read"]
    assert body["tool_choice"] == "required"
    await bridge.post(f"/session/{session}/prompt_sync", parts=text("again"))
    body = (await stub.next_request()).json
    assert (body["model"], body["temperature"]) == ("stub-model", 1)
    assert len(body["tools"]) > 1
    assert "tool_choice" not in body


@pytest.mark.behaviour("http_tools_go_by_the_engines_names")
@pytest.mark.parametrize(
    ("allowed", "offered"),
    [
        (["glob", "list", "codesearch", "websearch"], {"find", "ls", "grep"}),
        (["g*"], {"git", "grep", "find"}),
        (["websearch"], set()),
    ],
)
async def test_the_engines_tool_names_map_to_nousd_tools(
    allowed: list[str], offered: set[str], bridge: Bridge, stub: StubModel
) -> None:
    session = await bridge.new_session()
    await bridge.post(f"/session/{session}/prompt_sync", parts=text("go"), toolAllowlist=allowed)
    body = (await stub.next_request()).json
    assert {tool["function"]["name"] for tool in body.get("tools", ())} == offered


@pytest.mark.parametrize("option", [{"tool_mode": "none"}, {"tool_allowlist": []}])
async def test_a_run_can_have_no_tools(
    option: dict[str, Any], bridge: Bridge, stub: StubModel
) -> None:
    session = await bridge.new_session()
    await bridge.post(f"/session/{session}/prompt_sync", parts=text("go"), **option)
    body = (await stub.next_request()).json
    assert not body.get("tools") or body["tool_choice"] == "none"


@pytest.mark.slow(keep=5)
@pytest.mark.parametrize(
    ("option", "code", "words"),
    [
        (
            {"toolMode": "sometimes"},
            "INVALID_REQUEST",
            "body: toolMode must be auto or none or required",
        ),
        (
            {"contextMode": "huge"},
            "INVALID_REQUEST",
            "body: contextMode must be auto or compact or full",
        ),
        ({"toolAllowlist": "read"}, "INVALID_REQUEST", "body: toolAllowlist must be"),
        ({"toolAllowlist": ["nothing"]}, "TOOL_NOT_FOUND", "nothing"),
        ({"toolAllowlist": [], "toolMode": "required"}, "INVALID_REQUEST", "toolMode must not be"),
        (
            {"model": {"providerID": "nobody", "modelID": "x"}},
            "PROVIDER_NOT_FOUND",
            "provider_not_configured",
        ),
        ({"temperature": 3}, "INVALID_REQUEST", "temperature"),
        ({"max_tokens": 1.5}, "INVALID_REQUEST", "body: max_tokens must be"),
        ({"agent": "x" * 257}, "INVALID_REQUEST", "agent is too long"),
    ],
)
async def test_an_invalid_option_is_refused_with_its_name(
    option: dict[str, Any], code: str, words: str, bridge: Bridge
) -> None:
    session = await bridge.new_session()
    refused = await prompt(bridge, session, **option)
    told = refused.json()
    assert (refused.status_code, told["code"]) == (422, code), told
    assert words in told["error"]
    assert await bridge.get(f"/session/{session}/run") == {"active": None}


# --- appended, then prompted ---------------------------------------------------------------------


@pytest.mark.slow(keep=1)
@pytest.mark.behaviour("http_appended_texts_are_not_repeated")
@pytest.mark.parametrize("path", ["prompt_async", "prompt_sync"])
async def test_an_appended_text_is_not_repeated_by_its_prompt(
    path: str, bridge: Bridge, stub: StubModel
) -> None:
    session = await bridge.new_session()
    note = {"type": "file", "filename": "a.txt", "url": "data:text/plain;base64,aGk="}
    for parts in (text("first"), [*text("second"), note]):
        await bridge.post(f"/session/{session}/message", parts=parts)
    await bridge.post(f"/session/{session}/{path}", parts=[*text("second"), note])
    await wait_for_end(bridge, session)
    words = await user_texts(bridge, session)
    assert [each.splitlines()[0] for each in words] == ["first", "second"]
    body = str((await stub.next_request()).json["messages"])
    assert body.count("second") == 1
    await bridge.post(f"/session/{session}/{path}", parts=text("second"))
    await wait_for_end(bridge, session)
    assert len(await user_texts(bridge, session)) == 3, "an answered text is prompted again"


# --- without new parts ---------------------------------------------------------------------------


@pytest.mark.slow(keep=1)
@pytest.mark.behaviour("http_prompts_without_parts_run_what_was_appended")
@pytest.mark.parametrize("body", [{}, {"parts": []}, {"parts": text(" ")}])
async def test_a_prompt_without_parts_runs_the_appended_message_and_judges_the_session_first(
    body: dict[str, Any], bridge: Bridge, stub: StubModel
) -> None:
    for path in ("message", "prompt_async", "prompt_sync"):
        reply = await bridge.http.post(f"/session/nope/{path}", json=body)
        assert (reply.status_code, reply.json()["code"]) == (404, "SESSION_NOT_FOUND"), path
    session = await bridge.new_session()
    before = await bridge.http.post(f"/session/{session}/prompt_async", json=body)
    assert (before.status_code, before.json()["code"]) == (422, "INVALID_REQUEST")
    assert "append a message" in before.json()["error"]
    await bridge.post(f"/session/{session}/message", parts=text("look around"))
    body = {**body, "max_tokens": 7}
    key = {"idempotency-key": "k"}
    path = f"/session/{session}/prompt_async"
    started = await bridge.http.post(path, json=body, headers=key)
    assert started.status_code == 204
    await wait_for_end(bridge, session)
    assert await user_texts(bridge, session) == ["look around"]
    asked = (await stub.next_request()).json
    assert 7 in (asked.get("max_tokens"), asked.get("max_completion_tokens"))
    again = await bridge.http.post(path, json=body, headers=key)
    assert again.json()["runID"] == started.headers["x-tandem-run-id"]
    answered = await bridge.http.post(path, json=body)
    assert answered.status_code == 422
    assert await user_texts(bridge, session) == ["look around"]


async def test_a_prompt_without_parts_runs_a_message_of_any_length_with_its_files(
    bridge: Bridge, stub: StubModel
) -> None:
    session = await bridge.new_session()
    words = "long " * 5_000
    note = {"type": "file", "mime": "text/plain", "filename": "n.txt", "url": "data:,see%20this"}
    await bridge.post(f"/session/{session}/message", parts=[*text(words), note])
    await bridge.post(f"/session/{session}/prompt_sync")
    (shown,) = await user_texts(bridge, session)
    assert shown.startswith(words)
    assert "see this" in json.dumps((await stub.next_request()).json)


# --- idempotency keys ----------------------------------------------------------------------------


@pytest.mark.behaviour("http_keys_start_one_run")
@pytest.mark.parametrize("header", ["Idempotency-Key", "x-tandem-idempotency-key"])
async def test_the_same_key_with_an_equal_body_is_the_same_run(
    header: str, bridge: Bridge, stub: StubModel
) -> None:
    session = await bridge.new_session()
    path = f"/session/{session}/prompt_async"
    headers = {header: "k1", "content-type": "application/json"}
    first = await bridge.http.post(path, json={"parts": text("gö")}, headers=headers)
    assert first.status_code == 204
    run_id = first.headers["x-tandem-run-id"]
    spelled = b'{ "unknown": 1, "parts": [ {"text": "g\\u00f6", "type": "text"} ] }'
    for query in ("", "?return=run"):
        again = await bridge.http.post(path + query, content=spelled, headers=headers)
        assert again.status_code == 202
        assert again.headers["x-tandem-run-id"] == run_id
        assert again.json() == {
            "runID": run_id,
            **dict.fromkeys(CONTEXT, f"session-{session}"),
            "sessionID": session,
            "attachEventStream": f"/event?sessionID={session}&runID={run_id}",
            "idempotentReplay": True,
        }
    await wait_for_end(bridge, session)
    assert (await bridge.http.post(path, content=spelled, headers=headers)).status_code == 202
    assert await user_texts(bridge, session) == ["gö"]


@pytest.mark.parametrize(
    "body", [{"parts": text("other")}, {"toolMode": "none"}, {"temperature": 1}]
)
async def test_the_same_key_with_another_body_is_a_conflict_without_a_run(
    body: dict[str, Any], bridge: Bridge
) -> None:
    session = await bridge.new_session()
    await prompt(bridge, session, key="k1")
    refused = await prompt(bridge, session, key="k1", **body)
    assert refused.status_code == 409
    told = refused.json()
    assert told.keys() == {"error", "code", "retryable"}
    assert (told["code"], told["retryable"]) == ("SESSION_RUN_CONFLICT", False)
    await wait_for_end(bridge, session)


@pytest.mark.behaviour("http_keys_start_one_run")
async def test_a_key_belongs_to_its_session_and_survives_a_restart(
    short_folder: Path, provider: Provider
) -> None:
    async with (
        socket_daemon(short_folder, provider=provider) as daemon,
        bridge_to(daemon) as bridge,
    ):
        one, two = await bridge.new_session(), await bridge.new_session()
        first = await prompt(bridge, one, key="k1")
        other = await prompt(bridge, two, key="k1")
        assert (first.status_code, other.status_code) == (204, 204)
        await wait_for_end(bridge, one)
        await wait_for_end(bridge, two)
    async with (
        socket_daemon(short_folder, provider=provider) as daemon,
        bridge_to(daemon) as bridge,
    ):
        again = await prompt(bridge, one, key="k1")
        assert again.json()["idempotentReplay"] is True
        assert again.headers["x-tandem-run-id"] == first.headers["x-tandem-run-id"]
        other = await prompt(bridge, one, key="k1", toolMode="none")
        assert other.status_code == 409


@pytest.mark.behaviour("http_keys_start_one_run")
async def test_concurrent_prompts_with_the_same_key_start_one_run(bridge: Bridge) -> None:
    session = await bridge.new_session()
    replies: list[httpx2.Response] = []

    async def ask() -> None:
        replies.append(await prompt(bridge, session, key="k1"))

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(ask)
    assert sorted(reply.status_code for reply in replies) == [202] * 7 + [204]
    assert len({reply.headers["x-tandem-run-id"] for reply in replies}) == 1
    await wait_for_end(bridge, session)
    assert await user_texts(bridge, session) == ["go"]


async def test_a_key_has_a_maximum_length(bridge: Bridge) -> None:
    session = await bridge.new_session()
    refused = await prompt(bridge, session, key="k" * 241)
    assert refused.status_code == 400
    assert "Idempotency-Key is too long: at most 240" in refused.json()["error"]
    assert (await prompt(bridge, session, key="k" * 240)).status_code == 204
    await wait_for_end(bridge, session)


async def test_a_repeated_prompt_sync_names_its_run(bridge: Bridge) -> None:
    session = await bridge.new_session()
    path, headers = f"/session/{session}/prompt_sync", {"idempotency-key": "k1"}
    first = await bridge.http.post(path, json={"parts": text("go")}, headers=headers)
    for accept in ("*/*", "text/event-stream"):
        again = await bridge.http.post(
            path, json={"parts": text("go")}, headers={**headers, "accept": accept}
        )
        assert again.status_code == 202
        assert again.json()["runID"] == first.headers["x-tandem-run-id"]


# --- waiting -------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_prompt_sync_returns_all_messages_or_the_reply(
    bridge: Bridge, stub: StubModel
) -> None:
    session = await bridge.new_session()
    path = f"/session/{session}/prompt_sync"
    stub.script(text_reply("Hel", "lo"))
    reply = await bridge.http.post(path, json={"parts": text("go")})
    assert reply.status_code == 200
    told = reply.json()
    assert [message["parts"] for message in told] == [text("go"), text("Hello")]
    assert {message["info"]["sessionID"] for message in told} == {session}
    long = "".join(f"{n} " for n in range(50_000))
    for agent in ("python-httpx/0.27", "node"):
        stub.script(text_reply(long))
        reply = await bridge.http.post(
            path, json={"parts": text("more")}, headers={"user-agent": agent}
        )
        assert reply.json() == {"reply": long}


@pytest.mark.behaviour("http_clients_choose_the_reply_of_prompt_sync")
@pytest.mark.parametrize("agent", ["nousd-tests", "python-httpx/0.27", "node"])
async def test_a_client_chooses_the_shape_of_a_prompt_sync_whatever_its_user_agent(
    agent: str, bridge: Bridge, stub: StubModel
) -> None:
    session = await bridge.new_session()
    headers, path = {"user-agent": agent}, f"/session/{session}/prompt_sync"
    body = {"parts": text("go")}
    stub.script(text_reply("one"), text_reply("two"))
    reply = await bridge.http.post(f"{path}?reply=object", json=body, headers=headers)
    assert reply.json() == {"reply": "one"}
    reply = await bridge.http.post(f"{path}?reply=array", json=body, headers=headers)
    assert [message["info"]["role"] for message in reply.json()] == ["user", "assistant"] * 2
    refused = await bridge.http.post(f"{path}?reply=text", json=body, headers=headers)
    assert refused.status_code == 400
    assert "reply" in refused.json()["error"]


@pytest.mark.slow
async def test_prompt_sync_times_out_and_its_run_continues(
    bridge: Bridge, stub: StubModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "HTTP_PROMPT_SECONDS", 1.0)
    gate = Gate()
    stub.script(text_reply("Hel", gate, "lo"))
    session = await bridge.new_session()
    late = await bridge.http.post(f"/session/{session}/prompt_sync", json={"parts": text("go")})
    assert (late.status_code, late.json()["code"]) == (504, "PROMPT_TIMEOUT")
    run = (await bridge.get(f"/session/{session}/run"))["active"]
    assert late.headers["x-tandem-run-id"] == run["runID"]
    gate.open()
    await wait_for_end(bridge, session)
    told = await bridge.get(f"/session/{session}/message")
    assert told[-1]["parts"] == text("Hello")


@pytest.mark.parametrize("accept", ["*/*", "text/event-stream"])
async def test_a_run_continues_after_its_waiting_client_disconnects(
    accept: str, bridge: Bridge, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("Hel", gate, "lo"))
    session = await bridge.new_session()
    async with bridge.events(sessionID=session) as frames:
        host, port = bridge.base.removeprefix("http://").split(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            body = json.dumps({"parts": text("go")}).encode()
            head = (
                f"POST /session/{session}/prompt_sync HTTP/1.1\r\nhost: {host}\r\naccept: {accept}\r\n"
                f"{'authorization: ' + bridge.http.headers['authorization']}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            await stream.send_all(head.encode() + body)
            await gate.reached()
        gate.open()
        told = await frames.until("session.run.finished")
    assert told[-1].properties["status"] == "completed"
    assert (await bridge.get(f"/session/{session}/message"))[-1]["parts"] == text("Hello")


async def test_each_frame_of_a_prompt_stream_names_its_session_and_run_and_channel(
    bridge: Bridge, stub: StubModel, short_folder: Path
) -> None:
    (short_folder / "work" / "a.txt").write_text("in the file")
    stub.script(tool_reply(("read", {"path": "a.txt"})), text_reply("done"))
    session = await bridge.new_session()
    async with bridge.stream_of(
        "POST", f"/session/{session}/prompt_sync", json={"parts": text("go")}
    ) as frames:
        told = [frame async for frame in frames]
    assert told[0].type == "session.run.started"
    assert [frame.type for frame in told].count("session.run.finished") == 1
    assert told[-1].type == "session.run.finished"
    for frame in told:
        assert frame.properties["sessionID"] == session
        assert frame.properties["runID"] == told[0].properties["runID"]
        assert frame.properties["channel"] in {"system", "assistant", "tool", "log"}
        assert frame.properties.keys() >= {"tenantContext", "agentID"}
    assert {frame.properties["channel"] for frame in told} == {"system", "assistant", "tool"}


# --- handled by an extension ---------------------------------------------------------------------


async def test_a_text_that_an_extension_handled_is_a_conflict_with_the_reply(
    short_folder: Path, provider: Provider
) -> None:
    async with (
        socket_daemon(
            short_folder,
            provider=provider,
            hooks=hooks(on("input", lambda _given: HandleInput("42 lines"))),
        ) as daemon,
        bridge_to(daemon) as bridge,
    ):
        session = await bridge.new_session()
        for path in ("message", "prompt_async", "prompt_sync"):
            reply = await bridge.http.post(
                f"/session/{session}/{path}", json={"parts": text("count")}
            )
            told = reply.json()
            assert (reply.status_code, told["code"]) == (409, "HANDLED_BY_EXTENSION")
            assert told["error"].endswith(": 42 lines")
        assert await bridge.get(f"/session/{session}/message") == []


# --- stopped -------------------------------------------------------------------------------------


async def test_cancelling_affects_neither_queued_inputs_nor_later_runs(
    bridge: Bridge, stub: StubModel, client: Client
) -> None:
    gate = Gate()
    stub.script(text_reply("Hel", gate, "lo"))
    session = await bridge.new_session()
    async with bridge.events(sessionID=session) as frames:
        first = (await prompt(bridge, session)).headers["x-tandem-run-id"]
        await gate.reached()
        await client.request("follow_up", text="later", session_id=session)
        stopped = await bridge.post(f"/session/{session}/abort")
        assert stopped == {"ok": True, "cancelled": True, "closedBrowserSessions": 0}
        await frames.until("session.run.finished")
        queue = await client.request("get_queue", session_id=session)
        assert [each["text"] for each in queue["inputs"]] == ["later"]
        again = Gate()
        stub.script(text_reply("Hel", again, "lo"))
        await prompt(bridge, session)
        late = await bridge.post(f"/session/{session}/run/{first}/cancel")
        assert late == {"ok": True, "cancelled": False}
        again.open()
        end = (await frames.until("session.run.finished"))[-1]
        assert end.properties["status"] == "completed"
