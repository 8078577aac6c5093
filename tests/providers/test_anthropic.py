"""Peculiarities of the Messages API over HTTP; ``test_hosted`` tests what all dialects share."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from nousd.errors import ContextOverflow, ProviderError
from nousd.providers.anthropic.provider import AnthropicProvider
from nousd.providers.http.hosted import MODEL_PAGES_MAX
from tests.harness.stub_model import Reply
from tests.providers.conformance import KEY, Scene, Server, server_of
from tests.providers.dialects.anthropic import ANTHROPIC, models
from tests.providers.helpers import ask, collect


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with server_of(ANTHROPIC) as server:
        yield server


def page(*names: str, more: bool) -> Reply:
    body: dict[str, Any] = models(names) | {"has_more": more}
    return Reply((json.dumps(body).encode(),), content_type="application/json")


async def test_the_version_header_is_sent_and_the_beta_header_where_the_model_needs_it(
    server: Server,
) -> None:
    for model in ("claude-sonnet-5-5", "claude-opus-5"):
        server.script(Scene(text="a"))
        await collect(server.provider, msgspec.structs.replace(ask("hi"), model=model))
    bound, plain = server.stub.requests
    assert bound.headers["anthropic-version"] == plain.headers["anthropic-version"] == "2026-10-21"
    assert bound.headers["anthropic-beta"] == "thinking-binding-controls-2026-08-01"
    assert "anthropic-beta" not in plain.headers


async def test_a_list_of_models_is_read_page_by_page(server: Server) -> None:
    server.stub.script(page("a", "b", more=True), page("c", more=False))
    assert await server.provider.models() == ("a", "b", "c")
    assert [request.path for request in server.stub.requests] == [
        "/v1/models?limit=1000",
        "/v1/models?limit=1000&after_id=b",
    ]


async def test_an_endless_list_of_models_is_read_up_to_a_limit(server: Server) -> None:
    server.stub.script(*[page("a", more=True)] * (MODEL_PAGES_MAX + 5))
    assert await server.provider.models() == ("a",) * MODEL_PAGES_MAX


async def test_a_list_without_a_last_id_has_ended(server: Server) -> None:
    body = {"data": [{"id": "a"}], "has_more": True, "last_id": None}
    server.stub.script(Reply((json.dumps(body).encode(),), content_type="application/json"))
    assert await server.provider.models() == ("a",)


@pytest.mark.parametrize(
    ("status", "retryable"), [(400, False), (401, False), (429, True), (500, True), (529, True)]
)
async def test_the_status_of_a_refusal_decides_if_it_is_retryable(
    server: Server, status: int, *, retryable: bool
) -> None:
    server.stub.script(ANTHROPIC.refuse(status, "so"))
    with pytest.raises(ProviderError) as caught:
        await collect(server.provider, ask("hi"))
    assert (caught.value.status, caught.value.retryable) == (status, retryable)


async def test_an_input_too_long_together_with_the_answer_is_an_overflow(
    server: Server,
) -> None:
    words = "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000"
    server.stub.script(ANTHROPIC.refuse(400, words))
    with pytest.raises(ContextOverflow):
        await collect(server.provider, ask("hi"))


@pytest.mark.parametrize(
    ("base", "model", "image", "pdf"),
    [
        (None, "claude-sonnet-5-5", True, True),
        (None, "claude-3-haiku-20240307", True, True),
        (None, "claude-2.1", False, False),
        ("http://localhost:1", "anthropic/claude-opus-5", True, True),
        ("http://localhost:1", "some-model", True, False),
        ("http://localhost:1", "deepseek-chat", False, False),
    ],
)
def test_documents_are_accepted_only_by_the_vendors_models_on_any_server(
    base: str | None, model: str, *, image: bool, pdf: bool
) -> None:
    provider = AnthropicProvider(base, KEY)
    assert provider.accepts(model, "image/png") is image
    assert provider.accepts(model, "application/pdf") is pdf
    assert provider.accepts(model, "text/plain")
