from __future__ import annotations

import json
from typing import Any

import pytest

from nousd.errors import ContextOverflow
from nousd.providers.http.server_errors import error_from_response, retry_after_seconds

NOW = 1_700_000_000.0


def refusal(status: int, body: Any = b"", **headers: str) -> Any:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return error_from_response(status, named, raw, now=NOW)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_temporary_failures_are_retryable(status: int) -> None:
    assert refusal(status).retryable


@pytest.mark.parametrize("status", [301, 400, 401, 402, 403, 404, 405, 422])
def test_permanent_failures_are_not_retryable(status: int) -> None:
    assert not refusal(status).retryable


def test_an_exhausted_quota_is_not_retryable() -> None:
    error = refusal(429, {"error": {"message": "You have no credit", "code": "insufficient_quota"}})
    assert not error.retryable


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "No such model", "type": "x", "code": None}}, "No such model"),
        ({"error": "model 'x' not found"}, "model 'x' not found"),
        ({"message": "bad"}, "bad"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"detail": [{"loc": ["body", "model"], "msg": "field required"}]}, "field required"),
        ([{"error": {"message": "API key not valid", "code": 400}}], "API key not valid"),
        ("just a string", "just a string"),
        (b"upstream  connect\nerror", "upstream connect error"),
        (
            {"error": {"message": "Provider error", "metadata": {"raw": "too busy"}}},
            "Provider error: too busy",
        ),
    ],
)
def test_the_message_of_the_server_is_found(body: Any, words: str) -> None:
    assert str(refusal(400, body)) == words


@pytest.mark.parametrize(
    "body",
    [b"", b"<html><h1>Bad Gateway</h1></html>", b"{}", b"[]", b"null", b'{"error":{}}', b'{"a":1}'],
)
def test_without_a_message_the_status_is_shown(body: bytes) -> None:
    assert str(refusal(502, body)) == "http 502 Bad Gateway"


def test_an_unknown_status_is_shown_as_a_number() -> None:
    assert str(refusal(599)) == "http 599"


def test_a_deeply_nested_body_is_taken_as_text() -> None:
    assert str(refusal(400, b"[" * 5000)).startswith("[[[")


@pytest.mark.parametrize(
    "words",
    [
        "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens.",
        "Your input exceeds the context window of this model. Please adjust your input.",
        "the request exceeds the available context size, try increasing it",
        "request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it",
        "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
        "prompt is too long: 213462 tokens > 200000 maximum",
        "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
        "The number of tokens to keep is greater than the context length",
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        "Please reduce the length of the messages or completion.",
        "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
        "Your request exceeded model token limit: 8192",
        "input length exceeds maximum context length",
        "Input is too long for requested model.",
        "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000",
    ],
)
def test_an_overflow_is_recognised_by_its_wording(words: str) -> None:
    error = refusal(400, {"error": {"message": words}})
    assert isinstance(error, ContextOverflow)
    assert str(error) == words
    assert error.status == 400
    assert not error.retryable


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"message": "too much", "code": "context_length_exceeded"}}),
        (400, {"error": {"message": "too much", "type": "exceed_context_size_error"}}),
        (413, b""),
        (500, {"error": {"message": "maximum context length is 10 tokens"}}),
    ],
)
def test_an_overflow_is_recognised_by_code_and_status(status: int, body: Any) -> None:
    assert isinstance(refusal(status, body), ContextOverflow)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (429, "Request too large: too many tokens per minute"),
        (401, "prompt is too long"),
        (400, "messages: at least one is required"),
        (400, "max_tokens is too large: 9999"),
        (400, "unknown field context_length"),
    ],
)
def test_other_refusals_are_not_an_overflow(status: int, words: str) -> None:
    assert not isinstance(refusal(status, {"error": {"message": words}}), ContextOverflow)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:50 GMT"}, 30.0),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:10 GMT"}, 0.0),
        ({"retry-after": "Tue, 14 Nov 2023"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_the_retry_delay_of_a_server_is_parsed(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert retry_after_seconds(headers, NOW) == seconds


def test_an_error_has_the_retry_delay() -> None:
    assert refusal(429, retry_after="3").retry_after_seconds == 3.0
