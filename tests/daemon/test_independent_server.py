"""Whole tool loops in every dialect, against a model server that others wrote.

The stubs of our own tests answer as we understand the vendors; the authors of this one read the same
documents independently. It refuses requests that it does not understand, and records its reading of each
request, which the tests compare as well. It runs on Node: ``npm ci --prefix tests/aimock`` installs it,
and without it these tests are skipped.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from nousd.providers.setup.registry import ProviderSettings, make_provider
from tests.harness.daemon import Client, Event, Events, of_type, socket_daemon
from tests.harness.foreign_server import foreign_server

FOLDER: Final = Path(__file__).resolve().parent.parent / "aimock"
PROGRAM: Final = FOLDER / "node_modules/.bin/llmock"
KEY: Final = "key-of-the-tests"


@dataclass(frozen=True)
class Dialect:
    """The settings of a dialect; ``base_path`` is the end of its ``api_base``."""

    name: str
    base_path: str
    model: str


DIALECTS: Final = (
    Dialect("openai", "/v1", "gpt-5-mini"),
    Dialect("openai-responses", "/v1", "gpt-5-mini"),
    Dialect("anthropic", "", "claude-sonnet-4-5"),
    Dialect("gemini", "", "gemini-3.5-flash"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of the server; it takes requests with ``KEY`` only."""
    if shutil.which("node") is None:
        pytest.skip("Node is not installed, which the independent model server runs on")
    if not PROGRAM.exists():
        pytest.skip("the independent model server is missing: npm ci --prefix tests/aimock")
    with foreign_server(
        *(PROGRAM, "--port", "0", "--strict", "--fixtures", FOLDER / "fixtures.json"),
        env={"AIMOCK_API_KEYS": KEY},
        ready=r"listening on (http://\S+)",
    ) as process:
        yield process.told[1]


@dataclass(frozen=True)
class Talk:
    """A daemon whose model is the server, asked in one dialect."""

    dialect: Dialect
    client: Client
    events: Events
    journal: httpx2.AsyncClient

    async def run(self, text: str) -> list[Event]:
        """Return the events of the run that answers a prompt."""
        await self.client.request("prompt", text=text, wait=False)
        return await self.events.run()

    async def understood_requests(self) -> list[dict[str, Any]]:
        """Return the requests as the server understood them, in the form of Chat Completions."""
        entries = (await self.journal.get("/__aimock/journal")).raise_for_status().json()
        return [entry["body"] for entry in entries if entry["method"] == "POST"]


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.name)
async def talk(
    request: pytest.FixtureRequest, server: str, short_folder: Path
) -> AsyncIterator[Talk]:
    dialect: Dialect = request.param
    (short_folder / "work").mkdir()
    (short_folder / "work/notes.txt").write_text("The answer is forty-two.\n")
    settings = ProviderSettings(
        api_base=server + dialect.base_path, api_key=KEY, model=dialect.model
    )
    provider = make_provider(dialect.name, settings)
    headers = {"x-api-key": KEY}
    async with (
        socket_daemon(short_folder, provider=provider) as daemon,
        httpx2.AsyncClient(
            base_url=server, headers=headers, trust_env=False, verify=False
        ) as journal,
    ):
        (await journal.post("/__aimock/reset/journal")).raise_for_status()
        client, events = await daemon.connect(), await daemon.watch(types="all")
        yield Talk(dialect, client, events, journal)
    await provider.aclose()


def messages_in(request: dict[str, Any]) -> list[tuple[str, str]]:
    """Return role and text of each message except the system prompt."""
    pairs = [(message["role"], message["content"] or "") for message in request["messages"]]
    return [(role, text) for role, text in pairs if role not in ("system", "developer")]


def calls_in(request: dict[str, Any]) -> list[tuple[str, str]]:
    """Return id and name of each call that the server found in the history."""
    calls = [call for message in request["messages"] for call in message.get("tool_calls") or ()]
    return [(call["id"], call["function"]["name"]) for call in calls]


async def test_a_whole_tool_loop_reads_a_file_and_answers(talk: Talk) -> None:
    run = await talk.run("What is in notes.txt?")
    assert run[-1]["payload"]["status"] == "completed"
    first, second = of_type(run, "message_end")[-2:]
    assert (first["text"], first["stop_reason"]) == ("I have a look.", "tool_use")
    assert (second["text"], second["stop_reason"]) == ("It says forty-two, grüße 😀.", "stop")
    assert "".join(d["delta"] for d in of_type(run, "reasoning_update")) == "They want the file."
    [start], [end] = of_type(run, "tool_execution_start"), of_type(run, "tool_execution_end")
    assert (start["tool_name"], start["args"]) == ("read", {"path": "notes.txt"})
    assert not end["is_error"]
    assert "forty-two" in end["result"]
    assert [usage["usage"] for usage in of_type(run, "usage_reported")] == [
        {"input": 120, "output": 7, "total": 127},
        {"input": 150, "output": 9, "total": 159},
    ]


async def test_the_server_understands_the_prompt_the_tools_and_the_result(talk: Talk) -> None:
    await talk.run("What is in notes.txt?")
    first, second = await talk.understood_requests()
    assert messages_in(first) == [("user", "What is in notes.txt?")]
    assert {"read", "write", "edit", "bash"} <= {
        tool["function"]["name"] for tool in first["tools"]
    }
    [(id, name)] = calls_in(second)
    assert name == "read"
    assert second["messages"][-1]["role"] == "tool"
    assert second["messages"][-1]["tool_call_id"] == id
    assert "forty-two" in second["messages"][-1]["content"]
    assert (first["model"], first["stream"]) == (talk.dialect.model, True)


async def test_parallel_calls_get_their_own_results(talk: Talk) -> None:
    run = await talk.run("Read both.")
    assert [end["is_error"] for end in of_type(run, "tool_execution_end")] == [False, True]
    assert of_type(run, "message_end")[-1]["text"] == "One is missing."
    _, second = await talk.understood_requests()
    (one, _), (two, _) = calls_in(second)
    assert one != two
    results = [message for message in second["messages"] if message["role"] == "tool"]
    assert [result["tool_call_id"] for result in results] == [one, two]
    assert "forty-two" in results[0]["content"]
    assert "missing.txt" in results[1]["content"]


async def test_the_next_prompt_is_sent_with_the_whole_history(talk: Talk) -> None:
    await talk.run("What is in notes.txt?")
    run = await talk.run("Thanks.")
    assert of_type(run, "message_end")[-1]["text"] == "You are welcome."
    history = messages_in((await talk.understood_requests())[-1])
    texts = [text for role, text in history if role != "tool" and text]
    assert texts == [
        "What is in notes.txt?",
        "I have a look.",
        "It says forty-two, grüße 😀.",
        "Thanks.",
    ]
    assert [role for role, _ in history].count("tool") == 1


async def test_a_permanent_refusal_ends_the_run_with_the_servers_message(talk: Talk) -> None:
    run = await talk.run("Refuse.")
    assert run[-1]["payload"]["status"] == "error"
    [error] = of_type(run, "error")
    assert "this is not allowed here" in error["cause"]
    assert len(await talk.understood_requests()) == 1, "a permanent refusal is not retried"
