"""Peculiarities of the Responses API; the suite of all providers tests the rest."""

from __future__ import annotations

import json

import pytest
import trio

from nousd.errors import ConfigError
from nousd.machine.context.model_input import ToolResultMessage, UserMessage
from nousd.providers.openai_responses.provider import ResponsesProvider
from tests.harness.daemon import WAIT_SECONDS
from tests.providers.conformance import Scene, server_of
from tests.providers.decoding import remembered
from tests.providers.dialects.responses import RESPONSES
from tests.providers.helpers import ask, collect


async def test_reasoning_is_sent_back_within_a_tool_loop() -> None:
    thinking = Scene(reasoning="why", signature="encrypted==", calls=(("read", {"path": "a"}),))
    async with server_of(RESPONSES) as server:
        server.script(thinking, Scene(text="done"))
        with trio.fail_after(WAIT_SECONDS):
            answer = remembered(await collect(server.provider, ask("hi")))
            [call] = answer.tool_calls
            result = ToolResultMessage(call.id, "read", "content", is_error=False)
            await collect(server.provider, ask(UserMessage("hi"), answer, result))
            first, second = [await server.stub.next_request() for _ in range(2)]
    assert first.json["include"] == ["reasoning.encrypted_content"]
    assert first.json["store"] is False
    reasoning, function_call, output = second.json["input"][1:]
    assert reasoning == {
        "type": "reasoning",
        "id": "rs_stub",
        "summary": [{"type": "summary_text", "text": "why"}],
        "encrypted_content": "encrypted==",
    }
    assert json.loads(function_call["arguments"]) == {"path": "a"}
    assert output["call_id"] == function_call["call_id"]


@pytest.mark.parametrize(
    ("model", "media_type", "accepted"),
    [
        ("gpt-5-mini", "image/png", True),
        ("gpt-5-mini", "application/pdf", True),
        ("gpt-5-mini", "text/markdown", True),
        ("gpt-5-mini", "application/zip", False),
        ("gpt-oss-120b", "image/png", False),
        ("gpt-oss-120b", "application/pdf", False),
        ("gpt-oss-120b", "text/markdown", True),
    ],
)
def test_accepted_media_types_depend_on_the_model(
    model: str, media_type: str, accepted: bool
) -> None:
    assert ResponsesProvider("http://localhost:1/v1").accepts(model, media_type) is accepted


def test_the_error_of_a_missing_key_names_its_variable() -> None:
    with pytest.raises(ConfigError, match="OPENAI_API_KEY is not set"):
        ResponsesProvider()
