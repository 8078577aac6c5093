"""The Responses API as the vendor's servers stream it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from nousd.providers.openai_responses.provider import ResponsesProvider
from nousd.wire.objects.entries import Usage
from tests.harness.stub_model import Part
from tests.providers.conformance import KEY, Dialect, Scene
from tests.providers.dialects.openai import models

ERROR_CODES = {
    400: "invalid_prompt",
    401: "invalid_api_key",
    413: "context_length_exceeded",
    429: "rate_limit_exceeded",
    500: "server_error",
    503: "server_error",
    529: "server_error",
}

Item = dict[str, Any]


def response(status: str = "completed", **fields: Any) -> dict[str, Any]:
    return {
        "id": "resp_stub",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": "test-model",
        "status": status,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "usage": None,
        **fields,
    }


def reasoning_item(text: str = "", encrypted: str = "") -> Item:
    summary = [{"type": "summary_text", "text": text}] if text else []
    item: Item = {"type": "reasoning", "id": "rs_stub", "summary": summary}
    return item | ({"encrypted_content": encrypted} if encrypted else {})


def message_item(text: str = "", **fields: Any) -> Item:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "type": "message",
        "id": "msg_stub",
        "role": "assistant",
        "status": "completed",
        "content": [part],
        **fields,
    }


def call_item(index: int, name: str, arguments: str = "", status: str = "completed") -> Item:
    return {
        "type": "function_call",
        "id": f"fc_{index}",
        "call_id": f"call_{index}",
        "name": name,
        "arguments": arguments,
        "status": status,
    }


def added(index: int, item: Item) -> Item:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: int, item: Item) -> Item:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def text_delta(index: int, text: str) -> Item:
    return {
        "type": "response.output_text.delta",
        "item_id": "msg_stub",
        "output_index": index,
        "content_index": 0,
        "delta": text,
        "logprobs": [],
    }


def summary_part(index: int, summary_index: int = 0) -> Item:
    return {
        "type": "response.reasoning_summary_part.added",
        "item_id": "rs_stub",
        "output_index": index,
        "summary_index": summary_index,
        "part": {"type": "summary_text", "text": ""},
    }


def summary_delta(index: int, text: str, summary_index: int = 0) -> Item:
    return {
        "type": "response.reasoning_summary_text.delta",
        "item_id": "rs_stub",
        "output_index": index,
        "summary_index": summary_index,
        "delta": text,
    }


def arguments_delta(index: int, text: str) -> Item:
    return {
        "type": "response.function_call_arguments.delta",
        "item_id": f"fc_{index}",
        "output_index": index,
        "delta": text,
    }


def arguments_done(index: int, name: str, text: str) -> Item:
    return {
        "type": "response.function_call_arguments.done",
        "item_id": f"fc_{index}",
        "output_index": index,
        "name": name,
        "arguments": text,
    }


def ended(status: str = "completed", **fields: Any) -> Item:
    return {"type": f"response.{status}", "response": response(status, **fields)}


def stream(scene: Scene) -> tuple[Part, ...]:
    numbers = itertools.count()
    return tuple(
        {**part, "sequence_number": next(numbers)} if isinstance(part, dict) else part
        for part in _parts(scene)
    )


def _parts(scene: Scene) -> Iterator[Part]:
    output: list[Item] = []
    yield {"type": "response.created", "response": response("in_progress")}
    yield {"type": "response.in_progress", "response": response("in_progress")}
    if scene.reasoning or scene.signature:
        output.append(reasoning_item(scene.reasoning, scene.signature))
        yield added(0, reasoning_item())
        if scene.reasoning:
            yield summary_part(0)
        for char in scene.reasoning:
            yield summary_delta(0, char)
        yield done(0, output[0])
    if scene.text:
        index = len(output)
        output.append(message_item(scene.text))
        yield added(index, message_item(content=[], status="in_progress"))
        for char in scene.text:
            yield text_delta(index, char)
        yield from scene.then
        yield done(index, output[index])
    else:
        yield from scene.then
    for name, args in scene.calls:
        index, text = len(output), json.dumps(args)
        output.append(call_item(index, name, text))
        yield added(index, call_item(index, name, status="in_progress"))
        for char in text:
            yield arguments_delta(index, char)
        yield arguments_done(index, name, text)
        yield done(index, output[index])
    is_cut = scene.reason == "length"
    yield ended(
        "incomplete" if is_cut else "completed",
        output=output,
        incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
        usage=None if scene.usage is None else usage(scene.usage),
    )


def usage(told: Usage) -> dict[str, Any]:
    return {
        "input_tokens": told.input,
        "input_tokens_details": {
            "cached_tokens": told.cache_read,
            "cache_write_tokens": told.cache_write,
        },
        "output_tokens": told.output,
        "output_tokens_details": {"reasoning_tokens": told.reasoning},
        "total_tokens": told.total,
    }


def fault(status: int, words: str) -> dict[str, Any]:
    return {
        "type": "error",
        "code": ERROR_CODES[status],
        "message": words,
        "param": None,
        "sequence_number": 99,
    }


def refusal(status: int, words: str) -> dict[str, Any]:
    error = {"message": words, "type": "stub_error", "param": None, "code": ERROR_CODES[status]}
    return {"error": error}


RESPONSES = Dialect(
    name="openai-responses",
    provider=ResponsesProvider,
    api_path="/v1",
    call_path="/v1/responses",
    key_header=("authorization", f"Bearer {KEY}"),
    stream=stream,
    fault=fault,
    refusal=refusal,
    models=models,
    counts=frozenset({"cache_read", "cache_write", "reasoning"}),
    sends_back=True,
)
