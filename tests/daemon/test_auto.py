"""``--provider auto``: the choice of a provider, and its report."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from nousd.config.resolve import resolve
from nousd.config.settings import Settings
from nousd.daemon import serve
from nousd.providers.setup import auto
from nousd.providers.setup.auto import LocalServer
from tests.daemon.process_harness import Place, running
from tests.harness.daemon import WAIT_SECONDS
from tests.harness.stub_model import Reply, StubModel

LISTING = Reply(
    (json.dumps({"data": [{"id": "qwen"}, {"id": "other"}]}).encode(),),
    content_type="application/json",
)


@pytest.fixture(autouse=True)
def ollama(stub: StubModel, monkeypatch: pytest.MonkeyPatch) -> StubModel:
    """A local model server on the port that is searched for Ollama."""
    port = int(stub.api_base.split(":")[2].split("/")[0])
    monkeypatch.setattr(auto, "LOCAL_SERVERS", (LocalServer("ollama", port),))
    monkeypatch.setattr(auto, "SECONDS_MAX", WAIT_SECONDS)
    return stub


async def resolve_auto(environ: Mapping[str, str], **flags: str) -> Settings:
    settings = resolve({"provider": "auto", **flags}, environ, Path("/dev/null")).settings
    return await serve._with_provider_found(settings)


async def test_a_key_in_the_environment_selects_its_provider_without_probing_servers(
    ollama: StubModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="nousd")
    settings = await resolve_auto({"GEMINI_API_KEY": "k", "OPENAI_API_KEY": "k"})
    assert settings.provider == "openai"
    assert ollama.requests == []
    assert caplog.messages == ["provider auto is openai: it is configured"]


async def test_without_a_key_a_local_server_is_selected_with_its_first_model(
    ollama: StubModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="nousd")
    ollama.script(LISTING, LISTING)
    settings = await resolve_auto({})
    provider = settings.providers[settings.provider]
    assert (provider.name, provider.model, provider.api_base) == ("ollama", "qwen", ollama.api_base)
    assert caplog.messages == [f"provider auto is ollama: {ollama.api_base} answers"]
    settings = await resolve_auto({}, model="mine")
    assert settings.providers["ollama"].model == "mine"


async def test_without_a_key_or_a_server_the_mock_is_selected_with_a_warning(
    ollama: StubModel, caplog: pytest.LogCaptureFixture
) -> None:
    ollama.script(Reply(drops_at_once=True))
    settings = await resolve_auto({}, model="some-model")
    assert (settings.provider, settings.providers["mock"].model) == ("mock", None)
    [warning] = caplog.records
    assert warning.levelno == logging.WARNING
    assert "provider auto is mock: no provider is configured" in warning.getMessage()


async def test_a_daemon_reports_and_uses_the_selected_provider(
    short_folder: Path, stub: StubModel
) -> None:
    config = short_folder / "nousd" / "config.toml"
    config.parent.mkdir()
    table = f'dialect = "openai"\napi_base = "{stub.api_base}"\nmodel = "large"'
    config.write_text(f"[providers.work]\n{table}\n")
    place = Place(short_folder, options=("--provider", "auto"))
    async with running(place):
        client = await place.connect()
        capabilities = await client.request("get_capabilities")
        assert (capabilities["provider"], capabilities["model"]) == ("work", "large")
        assert (await client.request("prompt", text="hello"))["output"] == "stub-reply"
    assert "provider auto is work: it is configured" in (short_folder / "daemon.log").read_text()
