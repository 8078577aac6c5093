"""The Messages API as the vendor's servers stream it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from nousd.providers.anthropic.provider import AnthropicProvider
from nousd.wire.objects.entries import Usage
from tests.harness.stub_model import Part
from tests.providers.conformance import KEY, Dialect, Scene

REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_use": "tool_use"}

PING: Part = {"type": "ping"}

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "api_error",
    529: "overloaded_error",
}


def begin_block(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def end_block(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def begin(usage: Usage | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {
        "id": "msg_stub",
        "type": "message",
        "role": "assistant",
        "model": "test-model",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }
    if usage is not None:
        message["usage"] = {
            "input_tokens": usage.input - usage.cache_read - usage.cache_write,
            "cache_read_input_tokens": usage.cache_read,
            "cache_creation_input_tokens": usage.cache_write,
            "output_tokens": 1,
        }
    return {"type": "message_start", "message": message}


def end(reason: str = "end_turn", usage: Usage | None = None, **delta: Any) -> tuple[Part, ...]:
    last: dict[str, Any] = {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None, **delta},
    }
    if usage is not None:
        details = {"thinking_tokens": usage.reasoning}
        last["usage"] = {"output_tokens": usage.output, "output_tokens_details": details}
    return (last, {"type": "message_stop"})


def stream(scene: Scene) -> tuple[Part, ...]:
    return tuple(_parts(scene))


def _parts(scene: Scene) -> Iterator[Part]:
    yield begin(scene.usage)
    yield PING
    index = 0
    if scene.reasoning or scene.signature:
        yield begin_block(0, type="thinking", thinking="", signature="")
        for char in scene.reasoning:
            yield delta(0, "thinking_delta", thinking=char)
        yield delta(0, "signature_delta", signature=scene.signature)
        yield end_block(0)
        index = 1
    if scene.text:
        yield begin_block(index, type="text", text="")
        for char in scene.text:
            yield delta(index, "text_delta", text=char)
        yield from scene.then
        yield end_block(index)
        index += 1
    else:
        yield from scene.then
    yield from _calls(scene, index)
    yield from end(REASONS["tool_use" if scene.calls else scene.reason], scene.usage)


def _calls(scene: Scene, first: int) -> Iterator[Part]:
    for index, (name, args) in enumerate(scene.calls, first):
        yield begin_block(index, type="tool_use", id=f"toolu_{index}", name=name, input={})
        yield delta(index, "input_json_delta", partial_json="")
        for char in json.dumps(args):
            yield delta(index, "input_json_delta", partial_json=char)
        yield end_block(index)


def error(status: int, words: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": ERROR_TYPES[status], "message": words}}


def models(names: tuple[str, ...]) -> dict[str, Any]:
    data = [
        {"type": "model", "id": n, "display_name": n, "created_at": "2026-01-01T00:00:00Z"}
        for n in names
    ]
    return {"data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]}


ANTHROPIC = Dialect(
    name="anthropic",
    provider=AnthropicProvider,
    api_path="",
    call_path="/v1/messages",
    key_header=("x-api-key", KEY),
    stream=stream,
    fault=error,
    refusal=error,
    models=models,
    counts=frozenset({"cache_read", "cache_write", "reasoning"}),
    sends_back=True,
)
