"""What ``auto`` resolves to: a configured provider, a server on a usual port, the mock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import trio

from nousd.providers.setup import auto
from nousd.providers.setup.auto import LOCAL_SERVERS, LocalServer, find_provider
from tests.harness.daemon import WAIT_SECONDS
from tests.harness.stub_model import Gate, Reply, StubModel, error_reply, models_reply, stub_model


@dataclass(frozen=True)
class Configured:
    is_usable: bool
    dialect: str = "openai"


@dataclass(frozen=True)
class Machine:
    """The four local servers, as stubs in the order of their ports."""

    stubs: list[StubModel]

    @property
    def servers(self) -> list[LocalServer]:
        ports = [int(stub.api_base.split(":")[2].split("/")[0]) for stub in self.stubs]
        names = [server.name for server in LOCAL_SERVERS]
        return [LocalServer(name, port) for name, port in zip(names, ports, strict=True)]

    async def found(self, **configured: Configured) -> auto.FoundProvider:
        with trio.fail_after(WAIT_SECONDS):
            return await find_provider(configured, self.servers)


@pytest.fixture
async def machine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Machine]:
    monkeypatch.setattr(auto, "SECONDS_MAX", WAIT_SECONDS)
    async with AsyncExitStack() as stack:
        yield Machine([await stack.enter_async_context(stub_model()) for _ in LOCAL_SERVERS])


def test_the_local_servers_have_this_order_and_these_ports() -> None:
    assert [(server.name, server.api_base) for server in LOCAL_SERVERS] == [
        ("ollama", "http://127.0.0.1:11434/v1"),
        ("llama-cpp", "http://127.0.0.1:8080/v1"),
        ("lm-studio", "http://127.0.0.1:1234/v1"),
        ("vllm", "http://127.0.0.1:8000/v1"),
    ]


async def test_the_first_usable_configured_provider_is_chosen_without_requests(
    machine: Machine,
) -> None:
    usable, useless = Configured(is_usable=True), Configured(is_usable=False)
    mock = Configured(is_usable=True, dialect="mock")
    found = await machine.found(mine=mock, first=useless, second=usable, third=usable)
    assert found[:1] == ("second",)
    assert (found.api_base, found.model) == (None, None)
    assert [stub.requests for stub in machine.stubs] == [[]] * 4


async def test_the_first_server_with_a_model_is_chosen_with_its_first_chat_model(
    machine: Machine,
) -> None:
    ollama, llama, studio, vllm = machine.stubs
    ollama.script(error_reply(404, "not here"))
    llama.script(models_reply())
    studio.script(models_reply("text-Embedding-one", "qwen", "other"))
    vllm.script(models_reply("llama"))
    found = await machine.found(none=Configured(is_usable=False))
    assert (found.provider, found.model) == ("lm-studio", "qwen")
    assert found.api_base == studio.api_base
    for stub in machine.stubs:
        assert [request.path for request in stub.requests] == ["/v1/models"]
        assert "authorization" not in stub.requests[0].headers


async def test_the_order_of_servers_counts_and_not_their_speed(machine: Machine) -> None:
    gate = Gate()
    ollama, *_, vllm = machine.stubs
    ollama.script(Reply((gate, *models_reply("slow").parts), content_type="application/json"))
    vllm.script(models_reply("fast"))
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def open_later() -> None:
            await gate.reached()
            await vllm.next_request()
            gate.open()

        assert (await machine.found()).model == "slow"


async def test_other_servers_on_the_ports_are_ignored(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "SECONDS_MAX", 0.3)
    silent, web, refusing, talking = machine.stubs
    silent.script(Reply((Gate(),)))
    web.script(Reply((b"<html>hello</html>",), content_type="text/html"))
    refusing.script(error_reply(401, "a key, please"))
    talking.script(Reply(drops_at_once=True))
    found = await machine.found()
    assert (found.provider, found.api_base, found.model) == ("mock", None, None)
    assert "no provider is configured" in found.reason
    assert "ANTHROPIC_API_KEY" in found.reason


async def test_without_any_server_the_mock_is_chosen() -> None:
    async with stub_model() as stub:
        gone = LocalServer("ollama", int(stub.api_base.split(":")[2].split("/")[0]))
    with trio.fail_after(WAIT_SECONDS):
        assert (await find_provider({}, [gone])).provider == "mock"
