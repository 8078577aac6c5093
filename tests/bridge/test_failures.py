"""Why a run failed, over HTTP in the contract's words and over v1 in ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nousd.errors import ConfigError
from nousd.providers.mock.provider import MockProvider
from nousd.providers.openai.provider import OpenAIProvider
from nousd.wire import events
from tests.bridge.harness import Bridge, Frames, bridge_to, text
from tests.bridge.test_frames import WHERE, properties_of
from tests.harness.daemon import socket_daemon
from tests.harness.stub_model import stub_model


async def run_over_http(bridge: Bridge, words: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Return the code and message of the error, the last frame, and the last text of the transcript."""
    session = await bridge.new_session()
    path = f"/session/{session}/prompt_sync"
    async with bridge.stream_of("POST", path, json={"parts": text(words)}) as frames:
        told = await _until_the_end(frames)
    assert await bridge.get(f"/session/{session}/run") == {"active": None}
    reply = await bridge.http.post(path, json={"parts": text(words)})
    assert reply.status_code == 200
    assert reply.json() == await bridge.get(f"/session/{session}/message")
    return (
        told["session.error"]["error"],
        told["session.run.finished"],
        reply.json()[-1]["parts"][-1]["text"],
    )


async def _until_the_end(frames: Frames) -> dict[str, dict[str, Any]]:
    return {frame.type: frame.properties for frame in await frames.until("session.run.finished")}


@pytest.mark.behaviour("http_failed_model_calls_have_the_words_of_the_contract")
@pytest.mark.parametrize(
    ("status", "category", "theirs", "code"),
    [
        (400, "invalid_request", "validation", "PROVIDER_SERVER_ERROR"),
        (401, "authentication", "authentication", "AUTHENTICATION_ERROR"),
        (402, "quota", "provider", "RATE_LIMIT_EXCEEDED"),
        (403, "permission_denied", "permission_denied", "AUTHENTICATION_ERROR"),
        (404, "not_found", "provider", "PROVIDER_SERVER_ERROR"),
        (408, "timeout", "timeout", "ENGINE_TIMEOUT"),
        (413, "context_length", "validation", "CONTEXT_LENGTH_EXCEEDED"),
        (429, "rate_limit", "provider", "RATE_LIMIT_EXCEEDED"),
        (500, "server_error", "provider", "PROVIDER_SERVER_ERROR"),
        (503, "overloaded", "provider", "PROVIDER_SERVER_ERROR"),
    ],
)
@pytest.mark.slow(keep=4)
async def test_a_failed_model_call_has_its_category_over_http_and_v1(
    status: int, category: str, theirs: str, code: str, short_folder: Path
) -> None:
    words = f"mock error {status}"
    async with socket_daemon(short_folder, provider=MockProvider()) as daemon:
        async with bridge_to(daemon) as bridge:
            error, end, last = await run_over_http(bridge, f"[[error {status}]]")
        client = await daemon.connect()
        answer = await client.answer(await client.ask("prompt", text=f"[[error {status}]]"))
        run_id = answer["error"]["details"]["run_id"]
        page = await client.request("get_events", run_id=run_id, types=["error", "agent_end"])
    assert error["code"] == code
    assert (end["status"], end["failureCategory"], end["error"]) == ("error", theirs, words)
    assert last == f"ENGINE_ERROR: {code}: {words}"
    assert answer["error"]["code"] == "provider_error"
    assert answer["error"]["cause"] == f"{category}: {words}"
    told, ended = (line["payload"] for line in page["events"])
    assert (told["category"], told["cause"]) == (category, f"{category}: {words}")
    assert (ended["category"], ended["error"]) == (category, f"{category}: {words}")


@pytest.mark.behaviour("http_failed_model_calls_have_the_words_of_the_contract")
async def test_an_unreachable_server_is_no_error_of_the_server_over_http(
    short_folder: Path,
) -> None:
    async with stub_model() as stub:
        provider = OpenAIProvider(stub.origin + "/v1")
    async with (
        socket_daemon(short_folder, provider=provider) as daemon,
        bridge_to(daemon) as bridge,
    ):
        error, end, last = await run_over_http(bridge, "hello")
    assert (error["code"], end["failureCategory"]) == ("ENGINE_DISPATCH_FAILED", "provider")
    assert end["error"].startswith("the server cannot be reached")
    assert last == f"ENGINE_ERROR: ENGINE_DISPATCH_FAILED: {end['error']}"


class Unusable(MockProvider):
    """A provider that fails as it is used, because of its settings."""

    async def generate(self, *_: Any) -> None:
        raise ConfigError("api_base is not a URL")


async def test_a_provider_that_is_configured_wrongly_is_a_missing_connection_over_http(
    short_folder: Path,
) -> None:
    async with (
        socket_daemon(short_folder, provider=Unusable()) as daemon,
        bridge_to(daemon) as bridge,
    ):
        error, end, _ = await run_over_http(bridge, "hello")
    assert (error["code"], end["failureCategory"]) == (
        "ENGINE_DISPATCH_FAILED",
        "missing_connection",
    )
    assert end["error"] == "api_base is not a URL"


@pytest.mark.parametrize("more", [{}, {"category": "of a later version"}])
def test_a_failure_without_a_known_category_is_told_as_in_an_old_log(
    more: dict[str, str],
) -> None:
    words = {"code": "provider_error", "message": "m", "cause": "c"}
    (frame,) = properties_of(events.Error(**WHERE, **words, **more))
    assert frame["error"] == {"code": "PROVIDER_SERVER_ERROR", "message": "m"}
    *_, last = properties_of(events.AgentEnd(**WHERE, status="error", error="c", **more))
    assert (last["failureCategory"], last["error"]) == ("runtime", "c")


@pytest.mark.parametrize(
    ("status", "category"),
    [
        ("completed", None),
        ("cancelled", "user_cancelled"),
        ("timeout", "timeout"),
        ("interrupted", "runtime"),
    ],
)
def test_the_end_of_a_run_has_the_category_of_its_status(status: Any, category: str | None) -> None:
    *_, last = properties_of(events.AgentEnd(**WHERE, status=status))
    assert last["failureCategory"] == category
