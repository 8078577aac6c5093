"""Chat Completions as the vendor's servers stream them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from nousd.providers.openai.provider import OpenAIProvider
from nousd.wire.objects.entries import Usage
from tests.harness.stub_model import DONE, Part
from tests.providers.conformance import KEY, Dialect, Scene

CHUNK = {
    "id": "chatcmpl-stub",
    "object": "chat.completion.chunk",
    "created": 1_700_000_000,
    "model": "test-model",
}
REASONS = {"stop": "stop", "length": "length", "tool_use": "tool_calls"}


def chunk(reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {**CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def call(**fields: Any) -> dict[str, Any]:
    return chunk(tool_calls=[fields])


def stream(scene: Scene) -> tuple[Part, ...]:
    return tuple(_parts(scene))


def _parts(scene: Scene) -> Iterator[Part]:
    yield chunk(role="assistant", content="")
    for char in scene.reasoning:
        yield chunk(reasoning_content=char)
    for char in scene.text:
        yield chunk(content=char)
    yield from scene.then
    yield from _calls(scene)
    yield chunk(REASONS["tool_use" if scene.calls else scene.reason])
    if scene.usage is not None:
        yield {**CHUNK, "choices": [], "usage": _usage(scene.usage)}
    yield DONE


def _calls(scene: Scene) -> Iterator[Part]:
    """Yield all calls at once, one character of each in turn."""
    for index, (name, _) in enumerate(scene.calls):
        function = {"name": name, "arguments": ""}
        yield call(index=index, id=f"call_{index}", type="function", function=function)
    texts = [json.dumps(args) for _, args in scene.calls]
    for position in range(max(map(len, texts), default=0)):
        for index, text in enumerate(texts):
            yield call(index=index, function={"arguments": text[position : position + 1]})


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.total,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def error(status: int, words: str) -> dict[str, Any]:
    return {"error": {"message": words, "type": "stub_error", "param": None, "code": status}}


def models(names: tuple[str, ...]) -> dict[str, Any]:
    data = [{"id": n, "object": "model", "created": 1, "owned_by": "stub"} for n in names]
    return {"object": "list", "data": data}


OPENAI = Dialect(
    name="openai",
    provider=OpenAIProvider,
    api_path="/v1",
    call_path="/v1/chat/completions",
    key_header=("authorization", f"Bearer {KEY}"),
    stream=stream,
    fault=error,
    refusal=error,
    models=models,
    counts=frozenset({"cache_read", "reasoning"}),
)
