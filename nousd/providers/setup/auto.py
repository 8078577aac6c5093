"""Resolves the provider ``auto``: the first configured provider, else a model server on this machine at
its usual port, else the built-in model.

A local server is asked for its models without a key and with a short time limit; any other program on
such a port is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import trio

from nousd.errors import ProviderError
from nousd.providers.interface import Provider

SECONDS_MAX: Final = 1.0
"""Time limit for all local servers together to list their models."""

MOCK: Final = "mock"

LOCAL_DIALECT: Final = "openai"
"""The dialect of all local servers."""

_NO_CHAT: Final = "embed"
"""Part of the names of models that only compute embeddings."""


class LocalServer(NamedTuple):
    """A program that serves models, and its default port."""

    name: str
    port: int

    @property
    def api_base(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}/v1"


LOCAL_SERVERS: Final = (
    LocalServer("ollama", 11434),
    LocalServer("llama-cpp", 8080),
    LocalServer("lm-studio", 1234),
    LocalServer("vllm", 8000),
)
"""In order of preference."""


class Candidate(Protocol):
    """A configured provider."""

    @property
    def dialect(self) -> str: ...
    @property
    def is_usable(self) -> bool: ...


class FoundProvider(NamedTuple):
    """The provider that ``auto`` resolves to.

    Args:
        api_base, model: the URL of a local server and its first chat model; else None.
        reason: for people.
    """

    provider: str
    reason: str
    api_base: str | None = None
    model: str | None = None


async def find_provider(
    configured: Mapping[str, Candidate], servers: Sequence[LocalServer] | None = None
) -> FoundProvider:
    """Resolve ``auto``. This machine's ports are tried only if nothing is configured.

    Args:
        servers: the local servers to try; None for ``LOCAL_SERVERS``.
    """
    for name, candidate in configured.items():
        if candidate.is_usable and candidate.dialect != MOCK:
            return FoundProvider(name, "it is configured")
    listening = await _find_listening(LOCAL_SERVERS if servers is None else servers)
    return (await _find_local(listening) if listening else None) or FoundProvider(
        MOCK,
        "no provider is configured, and no model server answers on this machine: what you get are the "
        "answers of the built-in mock model. Run nousd init, or set ANTHROPIC_API_KEY, OPENAI_API_KEY "
        "or GEMINI_API_KEY, or start a local model server",
    )


async def _find_listening(servers: Sequence[LocalServer]) -> Sequence[LocalServer]:
    """Return the servers whose ports accept connections. Usually there are none, and then nothing is
    imported.
    """
    found: set[LocalServer] = set()

    async def look(server: LocalServer) -> None:
        with suppress(OSError):
            await (await trio.open_tcp_stream("127.0.0.1", server.port)).aclose()
            found.add(server)

    with trio.move_on_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            for server in servers:
                nursery.start_soon(look, server)
    return [server for server in servers if server in found]


async def _find_local(servers: Sequence[LocalServer]) -> FoundProvider | None:
    # Imported here, so that it is loaded only if needed, and before the time limit.
    from nousd.providers.setup.registry import ProviderSettings, make_provider

    providers = {
        server: make_provider(LOCAL_DIALECT, ProviderSettings(api_base=server.api_base))
        for server in servers
    }
    models: dict[LocalServer, tuple[str, ...]] = {}
    with trio.move_on_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            for server, provider in providers.items():
                nursery.start_soon(_list_models, server, provider, models)
    for server in servers:
        for model in models.get(server, ()):
            if _NO_CHAT not in model.lower():
                return FoundProvider(
                    server.name, f"{server.api_base} answers", server.api_base, model
                )
    return None


async def _list_models(
    server: LocalServer, provider: Provider, models: dict[LocalServer, tuple[str, ...]]
) -> None:
    try:
        models[server] = await provider.models()
    except ProviderError:
        return  # Another program, or nothing, listens on that port.
    finally:
        with trio.CancelScope(shield=True):
            await provider.aclose()
