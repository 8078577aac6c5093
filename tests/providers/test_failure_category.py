"""Why a model call failed, from the refusals of each vendor to the category and the contract's words."""

from __future__ import annotations

import json
from typing import Any, Final, get_args

import pytest
import trio.testing

from nousd.errors import FAILURE_CATEGORIES, FailureCategory, KeyUnavailable, ProviderError
from nousd.providers.http.server_errors import error_from_response
from nousd.views.tandem.failures import KINDS, engine_code, failure_category
from tests.harness.stub_model import Reply, hanging_reply, stub_model
from tests.providers.conformance import Dialect, server_of
from tests.providers.dialects import DIALECTS
from tests.providers.hosted import failure

Body = dict[str, Any] | list[dict[str, Any]]


def openai(
    message: str, type_: str = "invalid_request_error", code: str | None = None, **more: Any
) -> Body:
    return {"error": {"message": message, "type": type_, "param": None, "code": code, **more}}


def anthropic(type_: str, message: str) -> Body:
    return {
        "type": "error",
        "error": {"type": type_, "message": message},
        "request_id": "req_011",
    }


def gemini(code: int, status: str, message: str, reason: str = "") -> Body:
    error: dict[str, Any] = {"code": code, "message": message, "status": status}
    if reason:
        info = "type.googleapis.com/google.rpc.ErrorInfo"
        error["details"] = [{"@type": info, "reason": reason, "domain": "googleapis.com"}]
    return {"error": error}


_AUTH: Final = ("authentication", "authentication", "AUTHENTICATION_ERROR")
_FORBIDDEN: Final = ("permission_denied", "permission_denied", "AUTHENTICATION_ERROR")
_RATE: Final = ("rate_limit", "provider", "RATE_LIMIT_EXCEEDED")
_QUOTA: Final = ("quota", "provider", "RATE_LIMIT_EXCEEDED")
_LENGTH: Final = ("context_length", "validation", "CONTEXT_LENGTH_EXCEEDED")
_SCHEMA: Final = ("tool_schema", "validation", "TOOL_SCHEMA_INVALID")
_INVALID: Final = ("invalid_request", "validation", "PROVIDER_SERVER_ERROR")
_MISSING: Final = ("not_found", "provider", "PROVIDER_SERVER_ERROR")
_FILTER: Final = ("content_filter", "provider", "PROVIDER_SERVER_ERROR")
_BUSY: Final = ("overloaded", "provider", "PROVIDER_SERVER_ERROR")
_SERVER: Final = ("server_error", "provider", "PROVIDER_SERVER_ERROR")
_SLOW: Final = ("timeout", "timeout", "ENGINE_TIMEOUT")
_AWAY: Final = ("unreachable", "provider", "ENGINE_DISPATCH_FAILED")

_OPENAI: Final = [
    (401, openai("Incorrect API key provided: x.", code="invalid_api_key"), _AUTH),
    (
        403,
        openai(
            "Country, region, or territory not supported",
            "request_forbidden",
            "unsupported_country_region_territory",
        ),
        _FORBIDDEN,
    ),
    (404, openai("The model `gpt-x` does not exist", code="model_not_found"), _MISSING),
    (400, openai("invalid model ID", code="model_not_found"), _MISSING),
    (429, openai("Rate limit reached for gpt-4o", "tokens", "rate_limit_exceeded"), _RATE),
    (
        429,
        openai(
            "You exceeded your current quota, please check your plan and billing details.",
            "insufficient_quota",
            "insufficient_quota",
        ),
        _QUOTA,
    ),
    (402, openai("Insufficient Balance", "unknown_error"), _QUOTA),
    (
        400,
        openai(
            "This model's maximum context length is 128000 tokens.", code="context_length_exceeded"
        ),
        _LENGTH,
    ),
    (
        400,
        openai(
            "Invalid schema for function 'f': In context=('properties', 'a'), "
            "array schema missing items.",
            code="invalid_function_parameters",
        ),
        _SCHEMA,
    ),
    (
        400,
        openai("Invalid schema for function 'f': [] is not of type 'object'"),
        _SCHEMA,
    ),
    (400, openai("The response was filtered", code="content_filter"), _FILTER),
    (400, openai("Unrecognized request argument supplied: foo"), _INVALID),
    (422, {"detail": [{"loc": ["body", "model"], "msg": "field required"}]}, _INVALID),
    (500, openai("The server had an error", "server_error"), _SERVER),
    (502, b"<html>Bad Gateway</html>", _SERVER),
    (503, openai("The engine is currently overloaded", "server_error"), _BUSY),
    (504, b"<html>Gateway Timeout</html>", _SLOW),
]

_ANTHROPIC: Final = [
    (401, anthropic("authentication_error", "invalid x-api-key"), _AUTH),
    (403, anthropic("permission_error", "Your API key may not use this resource"), _FORBIDDEN),
    (404, anthropic("not_found_error", "model: claude-x"), _MISSING),
    (429, anthropic("rate_limit_error", "This request would exceed your rate limit"), _RATE),
    (402, anthropic("billing_error", "There is an issue with your billing"), _QUOTA),
    (
        400,
        anthropic("invalid_request_error", "Your credit balance is too low to access the API."),
        _QUOTA,
    ),
    (
        400,
        anthropic("invalid_request_error", "prompt is too long: 213462 tokens > 200000 maximum"),
        _LENGTH,
    ),
    (413, anthropic("request_too_large", "Request exceeds the maximum size"), _LENGTH),
    (
        400,
        anthropic("invalid_request_error", "tools.0.custom.input_schema: JSON schema is invalid"),
        _SCHEMA,
    ),
    (400, anthropic("invalid_request_error", "max_tokens: Field required"), _INVALID),
    (500, anthropic("api_error", "Internal server error"), _SERVER),
    (504, anthropic("timeout_error", "Request timed out"), _SLOW),
    (529, anthropic("overloaded_error", "Overloaded"), _BUSY),
]

_GEMINI: Final = [
    (
        400,
        gemini(400, "INVALID_ARGUMENT", "API key not valid.", reason="API_KEY_INVALID"),
        _AUTH,
    ),
    (400, [gemini(400, "INVALID_ARGUMENT", "API key not valid. Pass a valid one.")], _AUTH),
    (401, gemini(401, "UNAUTHENTICATED", "Request had invalid credentials"), _AUTH),
    (403, gemini(403, "PERMISSION_DENIED", "Requests from this app are blocked"), _FORBIDDEN),
    (404, gemini(404, "NOT_FOUND", "models/x is not found for API version v1beta"), _MISSING),
    (429, gemini(429, "RESOURCE_EXHAUSTED", "Resource has been exhausted"), _RATE),
    (
        400,
        gemini(
            400,
            "INVALID_ARGUMENT",
            "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        ),
        _LENGTH,
    ),
    (
        400,
        gemini(
            400,
            "INVALID_ARGUMENT",
            "* GenerateContentRequest.tools[0].function_declarations[0].parameters"
            ".properties[a].items: missing field.",
        ),
        _SCHEMA,
    ),
    (400, gemini(400, "FAILED_PRECONDITION", "User location is not supported"), _INVALID),
    (500, gemini(500, "INTERNAL", "An internal error has occurred"), _SERVER),
    (503, gemini(503, "UNAVAILABLE", "The model is overloaded"), _BUSY),
    (504, gemini(504, "DEADLINE_EXCEEDED", "The request timed out"), _SLOW),
]

_REFUSALS: Final = {
    "openai": _OPENAI,
    "openai-responses": _OPENAI,
    "anthropic": _ANTHROPIC,
    "gemini": _GEMINI,
}
"""name of a dialect -> status, body, and what that is: the category, and the contract's two words."""

_IN_STREAM: Final[dict[str, list[tuple[Any, tuple[str, str, str]]]]] = {
    "openai": [
        (openai("Rate limit reached", "tokens", "rate_limit_exceeded"), _RATE),
        (openai("No credit", "insufficient_quota", "insufficient_quota"), _QUOTA),
        (openai("The server had an error", "server_error"), _SERVER),
        ({"error": {"message": "Key limit exceeded", "code": 403}}, _FORBIDDEN),
        ({"choices": [{"delta": {}, "finish_reason": "content_filter"}]}, _FILTER),
    ],
    "openai-responses": [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "slow", "param": None}, _RATE),
        (
            {
                "type": "response.failed",
                "response": {
                    "status": "failed",
                    "error": {"code": "server_error", "message": "The model failed"},
                },
            },
            _SERVER,
        ),
    ],
    "anthropic": [
        (anthropic("overloaded_error", "Overloaded"), _BUSY),
        (anthropic("authentication_error", "revoked"), _AUTH),
        (anthropic("invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"), _LENGTH),
        (anthropic("api_error", "Internal server error"), _SERVER),
    ],
    "gemini": [
        (gemini(503, "UNAVAILABLE", "The model is overloaded"), _BUSY),
        (gemini(429, "RESOURCE_EXHAUSTED", "Quota exceeded"), _RATE),
        ({"candidates": [{"finishReason": "SAFETY"}]}, _FILTER),
    ],
}
"""name of a dialect -> event that reports a failure within a stream, and what that is."""


def words_of(error: ProviderError) -> tuple[str | None, str, str]:
    """Return the category, and the contract's category and code for it."""
    assert error.category is not None
    category = error.category
    return category, failure_category(category), engine_code("provider_error", category)


def named(rows: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(dialect, *row, id=f"{dialect.name}-{number}-{row[-1][0]}")
        for dialect in DIALECTS
        for number, row in enumerate(rows[dialect.name])
    ]


@pytest.mark.behaviour("a_failed_model_call_has_a_category")
@pytest.mark.parametrize(("dialect", "status", "body", "expected"), named(_REFUSALS))
async def test_the_refusal_of_each_vendor_has_its_category(
    dialect: Dialect, status: int, body: Any, expected: tuple[str, str, str]
) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with server_of(dialect) as server:
        server.stub.script(Reply((raw,), status=status, content_type="application/json"))
        assert words_of(await failure(server.provider)) == expected


@pytest.mark.behaviour("a_failed_model_call_has_a_category")
@pytest.mark.parametrize(("dialect", "event", "expected"), named(_IN_STREAM))
async def test_a_failure_within_a_stream_has_its_category(
    dialect: Dialect, event: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    async with server_of(dialect) as server:
        server.stub.script(Reply((event,)))
        assert words_of(await failure(server.provider)) == expected


async def test_an_unreachable_server_has_its_category(dialect: Dialect) -> None:
    async with stub_model() as stub:
        provider = dialect.provider(stub.origin + dialect.api_path)
    assert words_of(await failure(provider)) == _AWAY
    await provider.aclose()


async def test_a_lost_connection_has_the_category_of_an_unreachable_server(
    dialect: Dialect,
) -> None:
    async with server_of(dialect) as server:
        server.stub.script(Reply(drops_at_once=True))
        assert words_of(await failure(server.provider)) == _AWAY


async def test_a_silent_server_has_the_category_of_a_timeout(
    dialect: Dialect,
    clock: trio.testing.MockClock,
) -> None:
    async with server_of(dialect) as server:
        server.stub.script(hanging_reply())
        assert words_of(await failure(server.provider)) == _SLOW


def test_a_key_that_could_not_be_had_has_the_category_of_authentication() -> None:
    assert words_of(KeyUnavailable("api_key_command printed nothing")) == _AUTH


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"error":{"details":[1,{"reason":2}]}}'])
def test_every_status_has_a_category(body: bytes) -> None:
    for status in range(300, 600):
        assert error_from_response(status, {}, body, now=0.0).category in FAILURE_CATEGORIES


def test_every_category_has_a_meaning_and_words_of_the_contract() -> None:
    assert list(FAILURE_CATEGORIES) == list(get_args(FailureCategory))
    assert list(KINDS) == list(FAILURE_CATEGORIES)
