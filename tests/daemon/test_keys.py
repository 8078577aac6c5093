"""Keys of model servers appear only in requests: everything a daemon writes and sends is searched.

The tests plant three keys (one in the settings file, one in the environment, one that a command prints),
and the servers repeat them in every way they can.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.redaction.redactor import Redactor
from tests.daemon.process_harness import REPOSITORY, Place, Process, running
from tests.harness.daemon import WAIT_SECONDS
from tests.harness.stub_model import (
    Reply,
    StubModel,
    delta,
    error_reply,
    stub_model,
    text_reply,
    tool_reply,
)

IN_FILE = 'sk-planted-in-the-file-"1/+'
IN_ENVIRONMENT = "sk-planted-in-the-environment-2"
PRINTED = "sk-planted-and-printed-3"
KEYS = {"file": IN_FILE, "openai": IN_ENVIRONMENT, "late": PRINTED}

CONFIG = """
[providers.file]
dialect = "openai"
api_base = "{file}"
api_key = '{key}'
[providers.openai]
api_base = "{openai}"
[providers.late]
dialect = "openai"
api_base = "{late}"
api_key_command = ["./print-key"]
"""


class Planted(Place):
    """A place whose environment and settings hold keys."""

    def environment(self, **more: str) -> dict[str, str]:
        return {**super().environment(**more), "OPENAI_API_KEY": IN_ENVIRONMENT}


@dataclass
class World:
    place: Planted
    stubs: dict[str, StubModel]


async def run_nousd(world: World, *argv: str) -> str:
    """Run ``nousd`` to its end, and return its whole output."""
    with trio.fail_after(WAIT_SECONDS):
        ended = await trio.run_process(
            [sys.executable, "-m", "nousd", *argv],
            env=world.place.environment(),
            cwd=REPOSITORY,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    return (ended.stdout + ended.stderr).decode()


@pytest.fixture
async def world(short_folder: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        stubs = {name: await stack.enter_async_context(stub_model()) for name in KEYS}
        config = short_folder / "nousd" / "config.toml"
        config.parent.mkdir()
        bases = {name: stub.api_base for name, stub in stubs.items()}
        config.write_text(CONFIG.format(**bases, key=IN_FILE))
        config.chmod(0o600)
        program = config.parent / "print-key"
        program.write_text(f"#!/bin/sh\necho {PRINTED}\n")
        program.chmod(0o700)
        options = ("--provider", "file", "--verbose", "--log-file", str(short_folder / "own.log"))
        yield World(Planted(short_folder, options=(*options, "--retry-attempts", "1")), stubs)


def replies_with(key: str) -> list[Reply]:
    """Return refusals and broken answers that contain the key: plain, in JSON, and within a stream."""
    return [
        error_reply(401, f"bad key {key}", code=key),
        error_reply(500, json.dumps({"key": key})),
        Reply((key.encode(),), status=400, content_type="text/plain"),
        Reply((b"data: " + key.encode() + b"\n\n",)),
        Reply((delta(content="x"), {"error": {"message": f"broke with {key}", "code": key}})),
        Reply((delta(content="x"), b": " + key.encode()), drops=True),
    ]


def keys_in(data: bytes) -> list[str]:
    """Return the names of the keys in the bytes, in any spelling that the redactor knows."""
    text = data.decode("utf-8", "replace")
    return [name for name, key in KEYS.items() if Redactor([key]).redact(text) != text]


def descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield int(child)
            yield from descendants(int(child))


async def use_every_provider(world: World, process: Process) -> list[Any]:
    """Have every provider answer, fail in every way and list models; return all received data."""
    client, events = await world.place.connect(), await world.place.watch(types="all")
    received: list[Any] = []
    for name, key in KEYS.items():
        stub = world.stubs[name]
        stub.script(text_reply("fine"), *replies_with(key))
        await client.request("set_model", model=f"{name}/m")
        for _ in range(1 + len(replies_with(key))):
            received.append(await client.answer(await client.ask("prompt", text="hello")))
            received += await events.run()
        stub.script(error_reply(403, f"no list for {key}"))
        received.append(await client.answer(await client.ask("list_models", provider=name)))
    stub.script(tool_reply(("bash", {"command": "env; cat /proc/self/cmdline; cat go"})))
    fifo = world.place.work / "go"
    os.mkfifo(fifo)
    await client.request("prompt", text="look around", wait=False)
    # The open returns once the last program of the tool has opened the pipe; the earlier ones ended.
    writer = await trio.to_thread.run_sync(os.open, fifo, os.O_WRONLY, abandon_on_cancel=True)
    children = [Path(f"/proc/{pid}") for pid in (process.pid, *descendants(process.pid))]
    assert len(children) > 2, "the tool should be running"
    received += [(child / "cmdline").read_text() for child in children]
    received += [(child / "environ").read_text() for child in children[1:]]
    os.close(writer)
    received += await events.run()
    for command in ("get_state", "get_messages", "get_capabilities", "get_events", "list_runs"):
        received.append(await client.request(command))
    for key in KEYS.values():
        # The refusal repeats the text of the client. It is logged, too, but without the key.
        await client.refusal("extension_command", name=key)
    return received


@pytest.mark.behaviour("keys_are_nowhere")
async def test_keys_are_sent_to_their_own_servers_and_appear_nowhere_else(world: World) -> None:
    with trio.fail_after(120):
        async with running(world.place) as process:
            received = await use_every_provider(world, process)
            assert await process.stop() == 0
    for name, key in KEYS.items():
        sent = {request.headers.get("authorization") for request in world.stubs[name].requests}
        assert sent == {f"Bearer {key}"}, f"{name} should be sent its own key and no other"
    errors = [item for item in received if isinstance(item, dict) and item.get("ok") is False]
    assert len(errors) >= len(KEYS) * 5, "clients should have received the servers' refusals"
    assert keys_in(json.dumps(received, ensure_ascii=False).encode()) == []
    files = [
        *world.place.state.rglob("*"),
        *world.place.work.rglob("*"),
        world.place.folder / "own.log",
        world.place.folder / "daemon.log",
    ]
    written = {str(path): path.read_bytes() for path in files if path.is_file()}
    assert {path: keys_in(data) for path, data in written.items() if keys_in(data)} == {}
    log = written[str(world.place.folder / "own.log")]
    assert log.count(b"extension_command_not_found: [redacted]") == len(KEYS)


@pytest.mark.slow
async def test_doctor_and_print_config_show_no_key(world: World) -> None:
    options = world.place.options[:2]
    for name, key in KEYS.items():
        world.stubs[name].script(error_reply(401, f"bad key {key}"))
    output = await run_nousd(world, "doctor", *options)
    assert keys_in(output.encode()) == []
    for name in KEYS:
        assert f"key {name}" in output
        assert f"{world.stubs[name].api_base} answers 401: bad key [redacted]" in output
    output = await run_nousd(world, "serve", *options, "--print-config")
    assert "providers.file.api_key = set" in output
    assert keys_in(output.encode()) == []


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "toml",
    [
        "[providers.file]\ndialect = 'openai'\napi_base = 'http://h'\napi_key = '{key}\u20ac'",
        "api_key = '{key}'",
        "api_key = '{key}",
    ],
)
async def test_errors_about_the_settings_show_no_key(world: World, toml: str) -> None:
    config = world.place.folder / "nousd" / "config.toml"
    config.write_text(toml.format(key=IN_FILE))
    output = await run_nousd(world, *world.place.command()[3:])
    assert output.startswith("nousd: ")
    assert keys_in(output.encode()) == []
