"""Peculiarities of Chat Completions over HTTP; ``test_hosted`` tests what all dialects share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from nousd.providers.interface import Finished, TextDelta
from nousd.providers.openai.provider import OpenAIProvider
from tests.harness.stub_model import Reply, delta, finish, whole_reply
from tests.providers.conformance import KEY, Server, server_of
from tests.providers.dialects.openai import OPENAI
from tests.providers.helpers import ask, collect, finish_of, text_of


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with server_of(OPENAI) as server:
        yield server


async def test_a_request_asks_for_a_stream(server: Server) -> None:
    await collect(server.provider, ask("hi"))
    request = await server.stub.next_request()
    assert request.json["messages"] == [{"role": "user", "content": "hi"}]
    assert request.json["stream"] is True


async def test_an_answer_that_is_not_streamed_is_decoded(server: Server) -> None:
    server.stub.script(whole_reply("all at once"))
    pieces = await collect(server.provider, ask("hi"))
    assert text_of(pieces) == "all at once"
    assert finish_of(pieces).usage is not None


async def test_a_connection_broken_after_the_finish_reason_is_a_complete_answer(
    server: Server,
) -> None:
    server.stub.script(Reply((delta(content="a"), finish()[0]), drops=True))
    assert await collect(server.provider, ask("hi")) == [TextDelta("a"), Finished("stop")]


@pytest.mark.parametrize(
    ("model", "image", "pdf"),
    [
        ("gpt-5-mini", True, True),
        ("gpt-4o", True, True),
        ("gpt-4.1", True, True),
        ("gpt-4", False, False),
        ("gpt-3.5-turbo", False, False),
        ("o1-mini", False, False),
        ("o3", True, True),
        ("o3-mini", False, False),
    ],
)
def test_the_vendors_vision_models_also_accept_documents(
    model: str, *, image: bool, pdf: bool
) -> None:
    provider = OpenAIProvider(None, KEY)
    assert provider.accepts(model, "image/png") is image
    assert provider.accepts(model, "application/pdf") is pdf
    assert provider.accepts(model, "text/csv")


@pytest.mark.parametrize(
    ("model", "image"),
    [
        ("llava", True),
        ("some/new-model", True),
        ("qwen/qwen2.5-vl-72b", True),
        ("qwen2.5-coder", False),
        ("llama3.2-vision", True),
        ("llama3.3", False),
        ("deepseek-ai/DeepSeek-V3", False),
    ],
)
def test_other_servers_accept_no_documents_and_images_only_for_vision_models(
    model: str, *, image: bool
) -> None:
    provider = OpenAIProvider("http://localhost:8000/v1")
    assert provider.accepts(model, "image/png") is image
    assert not provider.accepts(model, "application/pdf")
