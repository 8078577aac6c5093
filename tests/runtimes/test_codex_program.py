"""The runtime ``codex`` with the real program, where it is installed: a scripted model server stands
behind it, and its own schemas judge what it is sent.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from jsonschema_rs import Draft7Validator

from nousd.machine.policy.rules import Rule
from nousd.runtimes.agents.codex.agent import Codex
from nousd.store.memory import store as memory
from tests.harness.daemon import Event, FakeClock, of_type, users
from tests.harness.stub_model import Gate, Part, Reply, StubModel, stub_model
from tests.runtimes.bench import WAIT_SECONDS, RuntimeBench, runtime_bench, said
from tests.runtimes.scripted_adapter import ENVIRONMENT, scripted_program

PROGRAM = shutil.which("codex")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="there is no program codex here"),
]

SETTINGS = """
notify = ["touch", "{planted}/notify"]
model = "{model}"
model_provider = "stub"
[model_providers.stub]
name = "stub"
base_url = "{api_base}"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
request_max_retries = 0
stream_max_retries = 0
supports_websockets = false
[mcp_servers.user]
command = "touch"
args = ["{planted}/user"]
[projects."{work}"]
trust_level = "trusted"
"""

OF_THE_PROJECT = """
[mcp_servers.project]
command = "touch"
args = ["{planted}/project"]
[features]
shell_tool = true
"""


def answer(*items: Any) -> Reply:
    """Return a model's answer: texts, gates, and items of the Responses API."""
    parts: list[Part] = [{"type": "response.created", "response": {"id": "resp_1"}}]
    for number, item in enumerate(items):
        if isinstance(item, Gate):
            parts.append(item)
        elif isinstance(item, str):
            parts += _text(number, item)
        else:
            done = {"type": "response.output_item.done", "output_index": number, "item": item}
            parts.append(done)
    usage = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}
    response = {"id": "resp_1", "output": [], "usage": usage}
    parts.append({"type": "response.completed", "response": response})
    return Reply(parts)


def _text(number: int, text: str) -> Iterator[Part]:
    item = {"type": "message", "id": f"msg_{number}", "role": "assistant"}
    where = {"output_index": number}
    yield {"type": "response.output_item.added", "item": {**item, "content": []}, **where}
    at = {"item_id": item["id"], "content_index": 0}
    yield {"type": "response.output_text.delta", "delta": text, **at, **where}
    content = [{"type": "output_text", "text": text}]
    yield {"type": "response.output_item.done", "item": {**item, "content": content}, **where}


def call(name: str, args: Any, id_: str = "call_1") -> Any:
    return {
        "type": "function_call",
        "id": f"fc_{id_}",
        "call_id": id_,
        "name": name,
        "arguments": json.dumps(args),
    }


READ = call("workspace_read", {"path": "notes.txt"})


class Place:
    """The folders of the program and of its session, with things planted in both."""

    def __init__(self, folder: Path, stub: StubModel, model: str) -> None:
        self.planted, self.work, home = (folder / name for name in ("planted", "work", "home"))
        for made in (self.planted, self.work / ".codex", home):
            made.mkdir(parents=True)
        names = {"planted": self.planted, "work": self.work, "model": model}
        settings = SETTINGS.format(**names, api_base=stub.api_base)
        (home / "config.toml").write_text(settings)
        (self.work / ".codex" / "config.toml").write_text(OF_THE_PROJECT.format(**names))
        (self.work / "AGENTS.md").write_text("planted instructions")
        (self.work / "notes.txt").write_text("what is noted")
        assert PROGRAM is not None
        variables = {"CODEX_HOME": str(home), "OPENAI_API_KEY": "key"}
        self.agent = Codex("codex", (PROGRAM,), variables)


@asynccontextmanager
async def _placed(
    folder: Path, model: str = "model-of-the-stub"
) -> AsyncIterator[tuple[Place, StubModel]]:
    async with stub_model() as stub:
        yield Place(folder, stub, model), stub


@pytest.fixture
def placed(tmp_path: Path) -> Any:
    return partial(_placed, tmp_path)


async def prompted(bench: RuntimeBench, text: str = "go", **payload: Any) -> list[Event]:
    """Return the events of a run."""
    with trio.fail_after(WAIT_SECONDS):
        accepted = await bench.client.request("prompt", text=text, wait=False, **payload)
        return await bench.events.run(accepted["run_id"])


def picture_of_a_pixel() -> bytes:
    """Return a PNG."""
    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(4))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def outputs(stub: StubModel) -> list[str]:
    """Return the outputs of calls that the model was told last."""
    given = stub.requests[-1].json["input"]
    return [str(item["output"]) for item in given if item["type"].endswith("_output")]


async def test_text_calls_and_usage_reach_the_log(placed: Any) -> None:
    async with placed() as (place, stub), runtime_bench(place.work, place.agent) as bench:
        both = (READ, call("workspace_write", {"path": "new", "content": "x"}, "call_2"))
        stub.script(answer("reading", *both), answer("read"))
        run = await prompted(bench)
        assert said(run) == ["reading", "read"]
        assert outputs(stub)[0] == "what is noted"
        assert (place.work / "new").read_text() == "x"
        totals = [reported["usage"]["total"] for reported in of_type(run, "usage_reported")]
        assert totals == [18, 18]
        assert of_type(run, "agent_end")[0]["status"] == "completed"


async def test_only_our_tools_are_offered_and_nothing_planted_runs(placed: Any) -> None:
    async with placed() as (place, stub), runtime_bench(place.work, place.agent) as bench:
        stub.script(answer("a"))
        await prompted(bench)
        (request,) = stub.requests
        names = [tool["name"] for tool in request.json["tools"]]
        assert names == ["workspace_read", "workspace_write", "patch_apply", "workspace_exec"]
        assert "planted" not in json.dumps(request.json["input"])
        assert list(place.planted.iterdir()) == []


async def test_a_tool_that_a_model_brings_along_has_no_effect(placed: Any) -> None:
    patch = "*** Begin Patch\n*** Add File: own\n+x\n*** End Patch\n"
    own = {"type": "custom_tool_call", "call_id": "call_1", "name": "apply_patch", "input": patch}
    shell = call("shell_command", {"command": "touch own"}, "call_2")
    async with (
        placed(model="gpt-5.5") as (place, stub),
        runtime_bench(place.work, place.agent) as bench,
    ):
        stub.script(answer(own, shell), answer("done"))
        run = await prompted(bench)
        assert said(run) == ["done"]
        assert len(outputs(stub)) == 2
        assert not (place.work / "own").exists()
        # It has nothing to act on, so it does not even ask.
        assert of_type(run, "tool_call_requested") == []


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")
async def test_its_commands_are_asked_about_and_pictures_that_it_looks_at_are_told(
    placed: Any,
) -> None:
    command = call("exec_command", {"cmd": "touch never"}, "call_1")
    picture = call("view_image", {"path": "picture.png"}, "call_2")
    rules = (Rule("deny", "shell", "the test"),)
    async with (
        placed() as (place, stub),
        runtime_bench(place.work, place.agent, rules=rules, own_tools="on") as bench,
    ):
        (place.work / "picture.png").write_bytes(picture_of_a_pixel())
        stub.script(answer(command), answer(picture), answer("done"))
        run = await prompted(bench)
        assert said(run) == ["done"]
        assert [denied["tool_name"] for denied in of_type(run, "tool_call_denied")] == ["shell"]
        assert not (place.work / "never").exists()
        (completed,) = of_type(run, "tool_call_completed")
        assert (completed["tool_name"], completed["gated"]) == ("view_image", False)


async def test_a_steer_waits_for_the_text_and_skips_the_call(placed: Any) -> None:
    async with placed() as (place, stub), runtime_bench(place.work, place.agent) as bench:
        gate = Gate()
        write = call("workspace_write", {"path": "never", "content": "x"})
        stub.script(answer("the whole text", gate, write), answer("steered"))
        with trio.fail_after(WAIT_SECONDS):
            await bench.client.request("prompt", text="go", wait=False)
            await gate.reached()
            await bench.client.request("steer", text="do something else")
            gate.open()
            run = await bench.events.run()
        assert said(run) == ["the whole text", "steered"]
        assert [kind for kind, _ in users(run)] == ["prompt", "steer"]
        assert not (place.work / "never").exists()
        assert len(stub.requests) == 2


async def test_an_abort_stops_the_model_call(placed: Any) -> None:
    async with placed() as (place, stub), runtime_bench(place.work, place.agent) as bench:
        gate = Gate()
        stub.script(answer("begun", gate), answer("again"))
        with trio.fail_after(WAIT_SECONDS):
            await bench.client.request("prompt", text="go", wait=False)
            await gate.reached()
            await bench.client.request("abort")
            await stub.wait_closed()
            run = await bench.events.run()
        assert of_type(run, "agent_end")[0]["status"] == "cancelled"
        assert said(await prompted(bench)) == ["again"]


async def test_a_thread_goes_on_or_is_told_in_a_new_one(placed: Any) -> None:
    async with placed() as (place, stub), memory.open_store() as store:
        daemon = partial(runtime_bench, place.work, place.agent, store=store, clock=FakeClock())
        stub.script(answer(READ), answer("one"), answer("two"), answer("three"))
        async with daemon() as bench:
            session = {"session_id": bench.session_id}
            await prompted(bench)
        async with daemon() as bench:
            kinds = [await resumed(bench, session)]
            await bench.client.request("append_message", text="from elsewhere", **session)
            kinds.append(await resumed(bench, session))
        assert kinds == ["native", "reconstruct"]
        assert outputs(stub) == ["what is noted"]
        assert "from elsewhere" in json.dumps(stub.requests[-1].json["input"])


async def resumed(bench: RuntimeBench, session: dict[str, str]) -> str:
    """Return how the program began to carry out a run."""
    notes = of_type(await prompted(bench, **session), "agent_session")
    (kind,) = [note["resume"] for note in notes if "resume" in note]
    return str(kind)


async def test_what_the_program_is_sent_is_valid(tmp_path: Path) -> None:
    assert PROGRAM is not None
    words = [PROGRAM, "app-server", "generate-json-schema", "--experimental", "--out"]
    await trio.to_thread.run_sync(partial(subprocess.run, [*words, tmp_path], check=True))
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    picture = work / "a.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n")
    agent = Codex("codex", scripted_program("fake_codex"), {**ENVIRONMENT, "CODEX_HOME": str(home)})
    async with runtime_bench(work, agent) as bench:
        files = [{"path": str(picture)}]
        calls = [["workspace.read", {"path": "a.png"}], ["workspace.write", {"path": "b"}]]
        await bench.run({"say": "a"}, {"calls": calls}, {"die": 1}, attachments=files)
        with trio.fail_after(WAIT_SECONDS):
            await bench.start({"hold": True})
            await bench.events.until("tool_call_completed")
            await bench.client.request("steer", text='[{"hold": true}]')
            await bench.events.until("message_start", text='[{"hold": true}]')
            await bench.client.request("abort")
            await bench.events.run()
    judges = {
        name: Draft7Validator(json.loads((tmp_path / f"{name}.json").read_text()))
        for name in ("ClientRequest", "ClientNotification", "DynamicToolCallResponse")
    }
    judged = set()
    for line in (home / "sent.ndjson").read_text().splitlines():
        message = json.loads(line)
        judged.add(message.get("method"))
        if "method" not in message:
            judges["DynamicToolCallResponse"].validate(message["result"])
        elif "id" in message:
            judges["ClientRequest"].validate(message)
        else:
            judges["ClientNotification"].validate(message)
    assert judged == {
        *(None, "initialize", "initialized", "config/read", "model/list", "thread/start"),
        *("thread/inject_items", "turn/start", "turn/steer", "turn/interrupt"),
    }
