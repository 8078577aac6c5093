"""Shared by tests of all dialects over HTTP: requests to a stub server, and reading the results."""

from __future__ import annotations

import pytest
import trio

from nousd.errors import ProviderError
from nousd.providers.http.hosted import HostedProvider
from tests.harness.stub_model import Gate, Part, Reply, burst, event
from tests.providers.conformance import Dialect, Scene, Server
from tests.providers.helpers import Collector, ask, collect, text_of

NOW = 1_700_000_000.0

HELLO = Scene(text="hello")


async def answer(server: Server, scene: Scene = HELLO) -> str:
    """Return the text of a call that gets the scene."""
    server.script(scene)
    return text_of(await collect(server.provider, ask("hi")))


async def failure(provider: HostedProvider, received: Collector | None = None) -> ProviderError:
    with trio.fail_after(400), pytest.raises(ProviderError) as caught:
        await provider.generate(ask("hi"), received or Collector())
    return caught.value


def fast(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return the events as one part, sent as fast as the network takes them."""
    events = [part for part in parts if isinstance(part, dict)]
    return (burst(*events), *(part for part in parts if not isinstance(part, dict)))


def flood(dialect: Dialect) -> Reply:
    """Return an answer of some MiB, more than the buffers between server and client hold."""
    words = "word " * 100
    return Reply(fast(dialect.stream(Scene(text=words))[:-2] * 50))


def up_to(parts: tuple[Part, ...], gate: Gate) -> tuple[Part, ...]:
    """Return the parts before the gate."""
    return parts[: parts.index(gate)]


def bytes_of(parts: tuple[Part, ...]) -> bytes:
    """Return the events as they are on the wire."""
    return b"".join(event(part) if isinstance(part, dict) else bytes_in(part) for part in parts)


def bytes_in(part: Part) -> bytes:
    assert isinstance(part, bytes)
    return part
