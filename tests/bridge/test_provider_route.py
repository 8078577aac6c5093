"""The list of providers and models over HTTP."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from nousd.errors import ConfigError
from nousd.machine.context.model_input import ModelChoice
from nousd.providers.interface import Provider
from nousd.providers.models import listing
from nousd.providers.models.catalog import ModelFacts, Models
from nousd.providers.setup.registry import make_provider
from tests.bridge.harness import bridge_to
from tests.harness.daemon import WAIT_SECONDS, provider_of, socket_daemon
from tests.harness.stub_model import StubModel, error_reply, models_reply, stub_model


def unusable() -> Provider:
    raise ConfigError("provider broken needs BROKEN_API_KEY")


async def test_each_provider_lists_its_models_and_their_source_and_its_status(
    short_folder: Path, stub: StubModel
) -> None:
    async with stub_model() as silent:
        models = Models(
            {
                "main": partial(provider_of, stub, "main"),
                "silent": partial(provider_of, silent, "silent"),
                "broken": unusable,
            },
            ModelChoice("main", "m1"),
            facts={
                "silent/small": ModelFacts(context_window=5000),
                "main/m1": ModelFacts(context_window=64_000),
            },
        )
        stub.script(models_reply("m1", "vendor/m2"))
        silent.script(error_reply(404, "no such route"))
        provider = models.provider("main")
        with trio.fail_after(WAIT_SECONDS):
            async with (
                socket_daemon(short_folder, provider=provider, models=models) as daemon,
                bridge_to(daemon) as bridge,
            ):
                catalog = await bridge.get("/provider")
        await models.aclose()
    main, silent_one, broken = catalog["all"]
    assert main == {
        "id": "main",
        "name": "main",
        "models": {
            "m1": {"name": "m1", "limit": {"context": 64_000}},
            "vendor/m2": {"name": "vendor/m2", "limit": {"context": 128_000}},
        },
        "catalog_source": "remote",
        "catalog_status": "ok",
    }
    assert silent_one["models"] == {"small": {"name": "small", "limit": {"context": 5000}}}
    assert (silent_one["catalog_source"], silent_one["catalog_status"]) == ("config", "error")
    assert silent_one["catalog_message"]
    assert broken == {
        "id": "broken",
        "name": "broken",
        "models": {},
        "catalog_source": "empty",
        "catalog_status": "unavailable",
        "catalog_message": "provider broken needs BROKEN_API_KEY",
    }
    assert catalog["connected"] == ["main", "silent"]
    assert catalog["default"] == "main"


async def test_more_models_than_one_response_holds_are_all_listed(
    short_folder: Path, stub: StubModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MODELS_LISTED_MAX", 3)
    async with stub_model() as other:
        models = Models(
            {
                "main": partial(provider_of, stub, "main"),
                "other": partial(provider_of, other, "other"),
            },
            ModelChoice("main", "m1"),
        )
        stub.script(models_reply("m1", "m2"))
        other.script(models_reply("o1", "o2"))
        provider = models.provider("main")
        with trio.fail_after(WAIT_SECONDS):
            async with (
                socket_daemon(short_folder, provider=provider, models=models) as daemon,
                bridge_to(daemon) as bridge,
            ):
                catalog = await bridge.get("/provider")
        await models.aclose()
    assert [list(provider["models"]) for provider in catalog["all"]] == [["m1", "m2"], ["o1", "o2"]]


async def test_without_a_server_that_lists_models_the_configured_one_is_listed(
    short_folder: Path,
) -> None:
    async with (
        socket_daemon(short_folder, provider=make_provider("mock")) as daemon,
        bridge_to(daemon) as bridge,
    ):
        catalog = await bridge.get("/provider")
    assert catalog["default"] in catalog["connected"]
    (mock,) = catalog["all"]
    assert mock["models"]
