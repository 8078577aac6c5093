"""Models of several servers in one daemon: the choice for a session, and the list of all."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.errors import ConfigError
from nousd.machine.context.model_input import ModelChoice
from nousd.providers.interface import Provider
from nousd.providers.models.catalog import ModelFacts, Models
from nousd.providers.models.prices import Price
from tests.harness.daemon import Client, Daemon, of_type, provider_of, socket_daemon
from tests.harness.stub_model import (
    Gate,
    Reply,
    StubModel,
    error_reply,
    models_reply,
    stub_model,
    tool_reply,
)


def unusable() -> Provider:
    raise ConfigError("provider broken needs BROKEN_API_KEY")


@pytest.fixture
async def other() -> AsyncIterator[StubModel]:
    """The server of the provider ``other``; ``stub`` is that of ``main``."""
    async with stub_model() as stub:
        yield stub


@pytest.fixture
def servers(stub: StubModel, other: StubModel) -> dict[str, StubModel]:
    return {"main": stub, "other": other}


@asynccontextmanager
async def daemon_with_models(
    folder: Path, stub: StubModel, other: StubModel
) -> AsyncIterator[Daemon]:
    models = Models(
        {
            "main": partial(provider_of, stub, "main"),
            "other": partial(provider_of, other, "other"),
            "broken": unusable,
        },
        ModelChoice("main", "m1"),
        aliases={"quick": ModelChoice("other", "small")},
        facts={
            "other/small": ModelFacts(
                context_window=5000,
                price=Price(input=1.0, output=2.5, cache_read=0.0),
                attachments=("image/*",),
            ),
            # The provider itself would accept images.
            "main/gpt-4o": ModelFacts(attachments=()),
        },
    )
    provider = models.provider("main")
    try:
        async with socket_daemon(folder, provider=provider, models=models) as daemon:
            yield daemon
    finally:
        await models.aclose()


@pytest.fixture
async def daemon(short_folder: Path, stub: StubModel, other: StubModel) -> AsyncIterator[Daemon]:
    with trio.fail_after(60):
        async with daemon_with_models(short_folder, stub, other) as daemon:
            yield daemon


async def choice_of(client: Client, **session: str) -> tuple[str, str, str | None]:
    state = await client.request("get_state", **session)
    return state["provider"], state["model"], state.get("thinking")


def requested_models(stub: StubModel) -> list[Any]:
    return [request.json["model"] for request in stub.requests]


# --- set_model -----------------------------------------------------------------------------------


@pytest.mark.behaviour("set_model_says_what_a_name_stands_for")
@pytest.mark.parametrize(
    ("name", "provider", "model"),
    [
        ("quick", "other", "small"),
        ("other/large", "other", "large"),
        ("other/vendor/large", "other", "vendor/large"),
        ("m2", "main", "m2"),
        ("main/vendor/m2", "main", "vendor/m2"),
    ],
)
async def test_a_model_name_resolves_to_a_provider_and_a_model(
    client: Client, servers: dict[str, StubModel], name: str, provider: str, model: str
) -> None:
    answer = await client.request("set_model", model=name)
    assert answer == {"command": "set_model", "provider": provider, "model": model}
    assert await choice_of(client) == (provider, model, None)
    await client.request("prompt", text="hello")
    assert {name: requested_models(server) for name, server in servers.items()} == {
        **{key: [] for key in servers},
        provider: [model],
    }


async def test_a_changed_model_answers_from_the_next_call_of_the_same_run(
    daemon: Daemon, client: Client, servers: dict[str, StubModel], short_folder: Path
) -> None:
    servers["main"].script(tool_reply(("bash", {"command": "cat go"})))
    events = await daemon.watch()
    fifo = short_folder / "work" / "go"
    os.mkfifo(fifo)
    await client.request("prompt", text="hello", wait=False)
    await events.until("tool_execution_start")
    await client.request("set_model", model="other/large")
    await client.request("set_thinking", level="low")
    await trio.to_thread.run_sync(fifo.write_text, "gone")
    await events.run()
    assert [requested_models(server) for server in servers.values()] == [["m1"], ["large"]]
    entries = (await client.request("get_messages"))["messages"]
    answers = [entry for entry in entries if entry["role"] == "assistant"]
    assert [(entry["provider"], entry["model"]) for entry in answers] == [
        ("main", "m1"),
        ("other", "large"),
    ]


@pytest.mark.behaviour("a_slip_in_a_models_name_is_refused")
@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("othr/large", "other/large"),
        ("quickk", "quick"),
        ("other", "other/MODEL"),
        ("vendor/m2", "main/vendor/m2"),
    ],
)
async def test_a_misspelled_model_is_refused_with_the_nearest_name(
    client: Client, name: str, nearest: str
) -> None:
    error = await client.refusal("set_model", model=name)
    assert (error["code"], error["message"]) == ("command_rejected", "model_unknown")
    assert error["details"] == {"nearest": nearest}
    assert nearest in error["cause"]
    assert await choice_of(client) == ("main", "m1", None)


async def test_a_model_that_must_be_listed_is_refused_with_the_nearest_that_is(
    client: Client, other: StubModel
) -> None:
    other.script(models_reply("large-2", "tiny"))
    error = await client.refusal("set_model", model="other/lagre-2", must_be_listed=True)
    assert (error["code"], error["message"]) == ("command_rejected", "model_unknown")
    assert error["cause"] == "other lists no model lagre-2; the nearest is other/large-2"
    assert error["details"] == {"nearest": "other/large-2", "must_be_listed": True}
    assert await choice_of(client) == ("main", "m1", None)
    for name in ("other/large-2", "quick"):
        await client.request("set_model", model=name, must_be_listed=True)
    await client.request("set_model", model="other/lagre-2")
    assert await choice_of(client) == ("other", "lagre-2", None)


async def test_a_server_that_cannot_be_asked_refuses_no_model(
    client: Client, stub: StubModel
) -> None:
    stub.script(error_reply(503, "overloaded"))
    await client.request("set_model", model="main/any", must_be_listed=True)
    assert await choice_of(client) == ("main", "any", None)


async def test_a_model_of_an_unusable_provider_is_refused(client: Client) -> None:
    error = await client.refusal("set_model", model="broken/large")
    assert (error["message"], error["cause"]) == (
        "provider_not_usable",
        "provider broken needs BROKEN_API_KEY",
    )
    assert await choice_of(client) == ("main", "m1", None)


async def test_a_model_receives_only_attachments_that_its_settings_allow(
    client: Client, stub: StubModel, other: StubModel
) -> None:
    file = {"data": base64.b64encode(b"\x89PNG\r\n\x1a\n").decode(), "media_type": "image/png"}
    await client.request("set_model", model="main/gpt-4o")
    error = await client.refusal("prompt", text="look", attachments=[file])
    assert error["message"] == "attachment_not_supported"
    await client.request("set_model", model="quick")
    await client.request("prompt", text="look", attachments=[file])
    (request,) = other.requests
    assert file["data"] in json.dumps(request.json["messages"])
    await client.request("set_model", model="main/gpt-4o")
    await client.request("prompt", text="and now?")
    (request,) = stub.requests
    assert file["data"] not in json.dumps(request.json["messages"])


async def test_a_configured_context_window_applies_to_its_model_alone(
    client: Client, daemon: Daemon
) -> None:
    events = await daemon.watch(types="all")
    windows = []
    for name in ("quick", "main/m1"):
        await client.request("set_model", model=name)
        await client.request("prompt", text="hello", wait=False)
        (told,) = of_type(await events.run(), "model_input")
        windows.append(told["context_window"])
    assert windows == [5000, 128_000]


# --- set_thinking --------------------------------------------------------------------------------


@pytest.mark.behaviour("set_thinking_holds_from_the_next_call")
async def test_model_and_thinking_are_per_session_durable_and_inherited_by_new_sessions(
    short_folder: Path, stub: StubModel, other: StubModel
) -> None:
    async with daemon_with_models(short_folder, stub, other) as daemon:
        client = await daemon.connect()
        first = (await client.request("new_session"))["session_id"]
        await client.request("set_model", model="quick")
        await client.request("set_thinking", level="high")
        second = (await client.request("new_session"))["session_id"]
        await client.request("set_thinking", level="off")
        branch = (await client.request("branch_session", session_id=first))["session_id"]
        sessions = (first, second, branch)
        before = [await choice_of(client, session_id=session) for session in sessions]
        small = ("other", "small")
        assert before == [(*small, "high"), (*small, "off"), (*small, "high")]
    async with daemon_with_models(short_folder, stub, other) as daemon:
        client = await daemon.connect()
        assert [await choice_of(client, session_id=session) for session in sessions] == before
        await client.request("new_session")
        assert await choice_of(client) == (*small, "off")


async def test_null_unsets_thinking_durably_and_for_new_sessions(
    short_folder: Path, stub: StubModel, other: StubModel
) -> None:
    async with daemon_with_models(short_folder, stub, other) as daemon:
        client = await daemon.connect()
        first = (await client.request("new_session"))["session_id"]
        await client.request("set_thinking", level="high")
        assert await client.request("set_thinking", level=None) == {"command": "set_thinking"}
        assert await choice_of(client) == ("main", "m1", None)
    async with daemon_with_models(short_folder, stub, other) as daemon:
        client = await daemon.connect()
        assert await choice_of(client, session_id=first) == ("main", "m1", None)
        await client.request("new_session")
        assert await choice_of(client) == ("main", "m1", None)


async def test_a_session_whose_provider_was_removed_uses_the_default_model(
    short_folder: Path, stub: StubModel, other: StubModel, provider: Provider
) -> None:
    async with daemon_with_models(short_folder, stub, other) as daemon:
        client = await daemon.connect()
        await client.request("new_session")
        await client.request("set_model", model="quick")
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client = await daemon.connect()
        assert await choice_of(client) == ("openai", "stub-model", None)
        assert (await client.request("prompt", text="hello"))["output"] == "stub-reply"


async def test_a_run_whose_provider_became_unusable_fails_with_the_cause(
    short_folder: Path, stub: StubModel, other: StubModel, provider: Provider
) -> None:
    async with daemon_with_models(short_folder, stub, other) as daemon:
        client = await daemon.connect()
        await client.request("new_session")
        await client.request("set_model", model="other/large")
    factories = {"openai": lambda: provider, "other": unusable}
    models = Models(factories, ModelChoice("openai", "stub-model"))
    async with socket_daemon(short_folder, provider=provider, models=models) as daemon:
        client, events = await daemon.connect(), await daemon.watch()
        error = await client.refusal("prompt", text="hello")
        assert error["code"] == "provider_error"
        (told,) = of_type(await events.run(), "error")
        assert (told["code"], told["cause"]) == (
            "provider_error",
            "not_configured: provider broken needs BROKEN_API_KEY",
        )
        await client.request("set_model", model="openai/stub-model")
        assert (await client.request("prompt", text="hello"))["output"] == "stub-reply"


# --- list_models ---------------------------------------------------------------------------------


@pytest.mark.behaviour("list_models_asks_every_server")
async def test_list_models_returns_the_models_facts_and_errors_of_all_providers(
    client: Client, stub: StubModel, other: StubModel
) -> None:
    stub.script(models_reply("m1", "gpt-4o"))
    other.script(error_reply(503, "overloaded"))
    await client.request("set_model", model="main/gpt-4o")
    answer = await client.request("list_models")
    assert answer == {
        "models": [
            {
                "id": "main/m1",
                "provider": "main",
                "model": "m1",
                "is_default": False,
                "context_window": 128_000,
            },
            {
                "id": "main/gpt-4o",
                "provider": "main",
                "model": "gpt-4o",
                "is_default": True,
                "context_window": 128_000,
            },
            {
                "id": "other/small",
                "provider": "other",
                "model": "small",
                "is_default": False,
                "context_window": 5000,
                "prices": {"input": 1.0, "output": 2.5, "cache_read": 0.0},
                "aliases": ["quick"],
            },
        ],
        "errors": [
            {"provider": "other", "cause": "overloaded"},
            {"provider": "broken", "cause": "provider broken needs BROKEN_API_KEY"},
        ],
        "providers": [
            {"provider": "main", "is_default": True, "usable": True, "catalog": "server"},
            {"provider": "other", "is_default": False, "usable": True, "catalog": "config"},
            {"provider": "broken", "is_default": False, "usable": False, "catalog": "none"},
        ],
    }


async def test_list_models_asks_the_server_again_only_with_refresh(
    client: Client, stub: StubModel, other: StubModel
) -> None:
    other.script(models_reply("a"), models_reply("b"))
    listed = []
    for refresh in (False, False, True):
        answer = await client.request("list_models", provider="other", refresh=refresh)
        listed.append([model["model"] for model in answer["models"]])
        assert [each["provider"] for each in answer["providers"]] == ["other"]
    assert listed == [["small", "a"], ["small", "a"], ["small", "b"]]
    assert (len(stub.requests), len(other.requests)) == (0, 2)


async def test_list_models_refuses_an_unknown_provider(client: Client) -> None:
    error = await client.refusal("list_models", provider="gone")
    assert error["message"] == "provider_not_configured"
    assert error["details"] == {"providers": ["broken", "main", "other"]}


async def test_a_slow_model_server_does_not_delay_other_connections(
    client: Client, daemon: Daemon, other: StubModel
) -> None:
    gate = Gate()
    other.script(Reply((gate, *models_reply("a").parts), content_type="application/json"))
    another = await daemon.connect()
    request_id = await client.ask("list_models", provider="other")
    await gate.reached()
    assert (await another.request("prompt", text="hello"))["status"] == "completed"
    gate.open()
    models = (await client.answer(request_id))["payload"]["models"]
    assert [model["model"] for model in models] == ["small", "a"]
