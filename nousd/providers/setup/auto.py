"""Which provider ``auto`` stands for: the first that is configured, else a model server on this machine
at its usual port, else the built-in model.

A local server is asked for its models without a key and within a moment; whatever else listens on one
of the ports is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import trio

from nousd.errors import ProviderError
from nousd.providers.interface import Provider

SECONDS_MAX: Final = 1.0
"""How long the local servers may take to list their models, all at once."""

MOCK: Final = "mock"

LOCAL_DIALECT: Final = "openai"
"""What all of the local servers speak."""

_NO_CHAT: Final = "embed"
"""Part of the names of models that can only be asked for vectors."""


class LocalServer(NamedTuple):
    """A program that serves models, and the port it has unless it is told otherwise."""

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
"""In the order in which they are taken."""


class Candidate(Protocol):
    """A provider that is configured."""

    @property
    def dialect(self) -> str: ...
    @property
    def is_usable(self) -> bool: ...


class Found(NamedTuple):
    """The provider that ``auto`` resolves to.

    Args:
        api_base, model: of a local server, whose first model it is; else None.
        reason: for people.
    """

    provider: str
    reason: str
    api_base: str | None = None
    model: str | None = None


async def find_provider(
    configured: Mapping[str, Candidate], servers: Sequence[LocalServer] | None = None
) -> Found:
    """Resolve ``auto``. The network is only looked at if nothing is configured.

    Args:
        servers: where to look on this machine; None is for ``LOCAL_SERVERS``.
    """
    for name, candidate in configured.items():
        if candidate.is_usable and candidate.dialect != MOCK:
            return Found(name, "it is configured")
    return await _find_local(LOCAL_SERVERS if servers is None else servers) or Found(
        MOCK,
        "no provider is configured, and no model server answers on this machine: what you get are the "
        "answers of the built-in mock model. Set ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY, "
        "write a provider into the settings file, or start a local model server",
    )


async def _find_local(servers: Sequence[LocalServer]) -> Found | None:
    # Here and not above, where it would be loaded for whoever has something configured; and before the
    # time runs.
    from nousd.providers.setup.registry import ProviderSettings, make_provider

    asked = {
        server: make_provider(LOCAL_DIALECT, ProviderSettings(api_base=server.api_base))
        for server in servers
    }
    listed: dict[LocalServer, tuple[str, ...]] = {}
    with trio.move_on_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            for server, provider in asked.items():
                nursery.start_soon(_list_models, server, provider, listed)
    for server in servers:
        for model in listed.get(server, ()):
            if _NO_CHAT not in model.lower():
                return Found(server.name, f"{server.api_base} answers", server.api_base, model)
    return None


async def _list_models(
    server: LocalServer, provider: Provider, listed: dict[LocalServer, tuple[str, ...]]
) -> None:
    try:
        listed[server] = await provider.models()
    except ProviderError:
        return  # Something else, or nothing, is on that port.
    finally:
        with trio.CancelScope(shield=True):
            await provider.aclose()
