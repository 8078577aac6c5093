"""The dialects as the conformance suite needs them, mainly how their servers stream.

A ``Scene`` describes the model's actions in one call, independent of the dialect. A ``Dialect`` turns it
into the parts of a reply of its server; each is a module in ``dialects``, and a row in ``DIALECTS``.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from nousd.machine.context.model_input import ModelInput
from nousd.providers.http.hosted import HostedProvider
from nousd.providers.interface import FinishReason
from nousd.wire.objects.entries import Usage
from tests.harness.stub_model import Part, Reply, StubModel, stub_model

KEY = "sk-very-secret-key"


@dataclass(frozen=True)
class Scene:
    """The model's actions in one call, in this order.

    Args:
        reasoning: the text of its reasoning.
        signature: the signature of the reasoning, in dialects that need it back.
        then: parts inserted unchanged between the text and the calls: a fault, a gate, garbage.
        calls: (name, arguments) of each, all in one message.
        usage: the reported usage; None: the server reports none.
    """

    reasoning: str = ""
    signature: str = ""
    text: str = ""
    then: tuple[Part, ...] = ()
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    reason: FinishReason = "stop"
    usage: Usage | None = None


@dataclass(frozen=True)
class Dialect:
    """The protocol of one vendor's servers.

    Args:
        provider: its class.
        api_path: the path of ``--api-base``.
        call_path: the path to which calls of ``test-model`` are posted.
        key_header: the name of the header with the key, and the header's value for ``KEY``.
        stream: the events of an answer, with texts and arguments in as many fragments as possible.
        fault: the event that reports a failure within a stream.
        refusal: the body of an error response: (status, words).
        models: the body of a list of models with those names.
        counts: the fields of ``Usage`` that the server reports besides input, output and total.
        sends_back: True if reasoning is sent back with the next call.
        says_the_end: True if a stream has an end marker before the response ends.
    """

    name: str
    provider: type[HostedProvider]
    api_path: str
    call_path: str
    key_header: tuple[str, str]
    stream: Callable[[Scene], tuple[Part, ...]]
    fault: Callable[[int, str], dict[str, Any]]
    refusal: Callable[[int, str], dict[str, Any]]
    models: Callable[[tuple[str, ...]], dict[str, Any]]
    counts: frozenset[str] = frozenset()
    sends_back: bool = False
    says_the_end: bool = True

    def reply(self, scene: Scene, **more: Any) -> Reply:
        """Return the reply that streams the scene."""
        return Reply(self.stream(scene), **more)

    def refuse(self, status: int, words: str = "no", **headers: str) -> Reply:
        """Return a refusal; ``retry_after="1"`` becomes the header Retry-After."""
        return Reply(
            (json.dumps(self.refusal(status, words)).encode(),),
            status=status,
            headers={name.replace("_", "-"): value for name, value in headers.items()},
            content_type="application/json",
        )


class Server:
    """A stub of a dialect's server, and a provider that calls it."""

    def __init__(self, dialect: Dialect, stub: StubModel, provider: HostedProvider) -> None:
        self.dialect = dialect
        self.stub = stub
        self.provider = provider

    def script(self, *scenes: Scene) -> None:
        """Add the scenes for the next calls."""
        self.stub.script(*(self.dialect.reply(scene) for scene in scenes))


@asynccontextmanager
async def server_of(
    dialect: Dialect, key: str | None = KEY, **settings: Any
) -> AsyncIterator[Server]:
    """Run a stub of the dialect's server until the block is left."""
    async with stub_model() as stub:
        provider = dialect.provider(stub.origin + dialect.api_path, key, **settings)
        yield Server(dialect, stub, provider)
        await provider.aclose()


def body_of(dialect: Dialect, request: ModelInput, blobs: dict[str, bytes] | None = None) -> Any:
    """Return the body that the dialect's provider would send."""
    provider = dialect.provider("http://localhost" + dialect.api_path)
    return json.loads(provider.call(request, blobs or {}).body)
