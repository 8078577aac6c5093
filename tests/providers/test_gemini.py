"""Peculiarities of Gemini's servers; the suite of all providers tests the rest."""

from __future__ import annotations

import pytest
import trio

from nousd.errors import ConfigError
from nousd.providers.gemini.provider import GeminiProvider
from nousd.providers.interface import NO_BLOBS
from tests.harness.daemon import WAIT_SECONDS
from tests.harness.stub_model import Reply, StubModel
from tests.providers.conformance import server_of
from tests.providers.dialects.gemini import GEMINI
from tests.providers.helpers import ask


def listing(body: bytes) -> Reply:
    return Reply((body,), content_type="application/json")


async def requests_of(stub: StubModel, count: int) -> list[str]:
    return [(await stub.next_request()).path for _ in range(count)]


async def test_models_of_all_pages_are_listed_without_embedding_models() -> None:
    first = b"""{"models": [
        {"name": "models/gemini-2.5-pro", "supportedGenerationMethods": ["generateContent"]},
        {"name": "models/embedding", "supportedGenerationMethods": ["embedContent"]},
        {"name": "models/unclear"}], "nextPageToken": "a b&c"}"""
    last = b'{"models": [{"name": "tunedModels/mine", "supportedGenerationMethods": null}]}'
    async with server_of(GEMINI) as server:
        server.stub.script(listing(first), listing(last))
        with trio.fail_after(WAIT_SECONDS):
            names = await server.provider.models()
            paths = await requests_of(server.stub, 2)
    assert names == ("gemini-2.5-pro", "unclear", "tunedModels/mine")
    assert paths == [
        "/v1beta/models?pageSize=1000",
        "/v1beta/models?pageSize=1000&pageToken=a+b%26c",
    ]


@pytest.mark.parametrize(
    ("model", "resource"),
    [
        ("gemini-2.5-pro", "models/gemini-2.5-pro"),
        ("models/gemini-2.5-pro", "models/gemini-2.5-pro"),
        ("tunedModels/mine", "tunedModels/mine"),
        ("../../secret?x#y", "models/..%2F..%2Fsecret%3Fx%23y"),
    ],
)
def test_the_name_of_a_model_is_escaped_in_the_request_path(model: str, resource: str) -> None:
    provider = GeminiProvider("http://localhost:1")
    request = ask("hi")
    path = provider.call(type(request)(messages=request.messages, model=model), NO_BLOBS).path
    assert path == f"/v1beta/{resource}:streamGenerateContent?alt=sse"


@pytest.mark.parametrize(
    ("model", "media_type", "accepted"),
    [
        ("gemini-2.5-pro", "image/png", True),
        ("gemini-2.5-pro", "image/gif", False),
        ("gemini-2.5-pro", "application/pdf", True),
        ("gemini-2.5-pro", "text/plain", True),
        ("gemini-2.5-pro", "application/zip", False),
        ("gemma-2-9b", "image/png", False),
        ("gemma-2-9b", "text/plain", True),
    ],
)
def test_accepted_media_types_depend_on_the_model(
    model: str, media_type: str, accepted: bool
) -> None:
    assert GeminiProvider("http://localhost:1").accepts(model, media_type) is accepted


def test_the_error_of_a_missing_key_names_its_variable() -> None:
    with pytest.raises(ConfigError, match="GEMINI_API_KEY is not set"):
        GeminiProvider()
