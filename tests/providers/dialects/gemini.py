"""``generateContent`` as the vendor's servers stream it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nousd.providers.gemini.provider import GeminiProvider
from nousd.wire.objects.entries import Usage
from tests.harness.stub_model import Part
from tests.providers.conformance import KEY, Dialect, Scene

REASONS = {"stop": "STOP", "length": "MAX_TOKENS", "tool_use": "STOP"}

ERROR_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    529: "UNAVAILABLE",
}


def chunk(
    *parts: dict[str, Any], reason: str | None = None, told: Usage | None = None
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0}
    if parts:
        candidate["content"] = {"role": "model", "parts": list(parts)}
    if reason:
        candidate["finishReason"] = reason
    whole = {"candidates": [candidate], "modelVersion": "test-model", "responseId": "stub"}
    return whole | ({"usageMetadata": usage(told)} if told else {})


def text(words: str, **fields: Any) -> dict[str, Any]:
    return {"text": words, **fields}


def call(name: str, args: Any, id: str = "", **fields: Any) -> dict[str, Any]:
    function = {"name": name, "args": args} | ({"id": id} if id else {})
    return {"functionCall": function, **fields}


def stream(scene: Scene) -> tuple[Part, ...]:
    return tuple(_parts(scene))


def _parts(scene: Scene) -> Iterator[Part]:
    for char in scene.reasoning:
        yield chunk(text(char, thought=True))
    for char in scene.text:
        yield chunk(text(char))
    yield from scene.then
    signature = {"thoughtSignature": scene.signature} if scene.signature else {}
    for index, (name, args) in enumerate(scene.calls):
        # Of calls that are made at once only the first is signed.
        yield chunk(call(name, args, **({} if index else signature)))
    # Where there is no call, the signature comes behind the text in a part without any.
    rest = [text("", **signature)] if signature and not scene.calls else []
    reason = REASONS["tool_use" if scene.calls else scene.reason]
    yield chunk(*rest, reason=reason, told=scene.usage)


def usage(told: Usage) -> dict[str, Any]:
    return {
        "promptTokenCount": told.input,
        "candidatesTokenCount": told.output - told.reasoning,
        "thoughtsTokenCount": told.reasoning,
        "cachedContentTokenCount": told.cache_read,
        "totalTokenCount": told.total,
    }


def error(status: int, words: str) -> dict[str, Any]:
    return {"error": {"code": status, "message": words, "status": ERROR_STATUSES[status]}}


def models(names: tuple[str, ...]) -> dict[str, Any]:
    listed: list[dict[str, Any]] = [
        {"name": f"models/{name}", "supportedGenerationMethods": ["generateContent", "countTokens"]}
        for name in names
    ]
    listed.append({"name": "models/embed", "supportedGenerationMethods": ["embedContent"]})
    return {"models": listed}


GEMINI = Dialect(
    name="gemini",
    provider=GeminiProvider,
    api_path="",
    call_path="/v1beta/models/test-model:streamGenerateContent?alt=sse",
    key_header=("x-goog-api-key", KEY),
    stream=stream,
    fault=error,
    refusal=error,
    models=models,
    counts=frozenset({"cache_read", "reasoning"}),
    sends_back=True,
    says_the_end=False,
)
