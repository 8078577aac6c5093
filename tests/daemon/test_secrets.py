"""The daemon never reveals its secrets: the tests plant a secret in each of its sources, and search
events, responses, the database, artifacts, the log file and the process list for them.

Texts of the user are not redacted; see the last tests.
"""

from __future__ import annotations

import base64
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.daemon.process_harness import Place, Process, running
from tests.harness.daemon import Client, Event, Events, of_type
from tests.harness.stub_model import Reply, StubModel, error_reply, text_reply, tool_reply

REDACTED: Final = "[redacted]"


def new_secret(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(12)}"


@dataclass
class PlantedPlace(Place):
    """The folder of a daemon with a secret in each source of secrets.

    Args:
        in_file: a provider's key in the settings file.
        in_environment: the key of the default provider, in the environment.
        of_deployment: a variable that no setting names but whose name suggests a secret.
        printed: the key that a provider's program prints.
        of_mcp: the secrets of MCP servers, if there are any.
    """

    in_file: str = field(default_factory=lambda: new_secret("sk-file"))
    in_environment: str = field(default_factory=lambda: new_secret("sk-env"))
    of_deployment: str = field(default_factory=lambda: new_secret("deploy"))
    printed: str = field(default_factory=lambda: new_secret("printed"))
    of_mcp: tuple[str, ...] = ()

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self.in_file, self.in_environment, self.of_deployment, self.printed, *self.of_mcp)

    def environment(self, **more: str) -> dict[str, str]:
        return super().environment(
            OPENAI_API_KEY=self.in_environment, DEPLOY_TOKEN=self.of_deployment, **more
        )

    def prepare(self) -> None:
        """Write the settings, and an extension that reveals its environment when it fails."""
        program = self.folder / "print-key"
        program.write_text(f"#!/bin/sh\necho {self.printed}\n")
        program.chmod(0o700)
        assert self.stub is not None
        folder = self.folder / "nousd"
        folder.mkdir()
        settings = folder / "config.toml"
        settings.write_text(
            f"""
            [providers.other]
            dialect = "openai"
            api_base = "{self.stub.api_base}"
            api_key = "{self.in_file}"
            model = "m"
            [providers.third]
            dialect = "openai"
            api_base = "{self.stub.api_base}"
            api_key_command = ["{program}"]
            model = "m"
            """
        )
        settings.chmod(0o600)
        extension = self.folder / "telltale.py"
        extension.write_text(
            "import os\n"
            "def fail(*_):\n"
            "    raise ValueError(f'cannot use {dict(os.environ)}')\n"
            "def register(api):\n"
            "    for name in ('turn_start', 'tool_call', 'run_end', 'session_before_switch'):\n"
            "        api.hook(name, fail)\n"
            "    api.tool('telltale', 'Fails.', {'type': 'object'}, fail)\n"
            "    api.tool('says', 'Says.', {'type': 'object'}, lambda *_: str(dict(os.environ)))\n"
            "    api.command('telltale', fail)\n"
        )
        self.options = (
            *("--permission-mode", "yolo", "--verbose", "--extension", str(extension)),
            *("--log-file", str(self.log_file), "--run-stale-seconds", "30"),
        )

    @property
    def log_file(self) -> Path:
        return self.folder / "nousd.log"


@dataclass
class Watched:
    """A daemon, and everything that its clients received."""

    place: PlantedPlace
    process: Process
    stub: StubModel
    client: Client
    events: Events
    received: list[Any] = field(default_factory=list)

    async def ask(self, type: str, **payload: Any) -> dict[str, Any]:
        answer = await self.client.answer(await self.client.ask(type, **payload))
        self.received.append(answer)
        return answer

    async def run(self, *replies: Reply, text: str = "go", **prompt: Any) -> list[Event]:
        self.stub.script(*replies)
        await self.ask("prompt", text=text, wait=False, **prompt)
        run = await self.events.run()
        self.received += run
        return run

    async def call(self, *calls: tuple[str, dict[str, Any]]) -> list[Event]:
        """Let the model call the tools one after the other."""
        return await self.run(tool_reply(*calls), text_reply("done"))


@pytest.fixture
def place(stub: StubModel) -> Iterator[PlantedPlace]:
    with tempfile.TemporaryDirectory(prefix="nousd-", dir="/tmp") as folder:
        place = PlantedPlace(Path(folder), stub)
        place.prepare()
        (place.work / "leak.txt").write_text("".join(f"key: {each}\n" for each in place.secrets))
        yield place


@pytest.fixture
async def watched(place: PlantedPlace, stub: StubModel) -> AsyncIterator[Watched]:
    """See ``watching``."""
    async with watching(place, stub) as watched:
        yield watched


@asynccontextmanager
async def watching(place: PlantedPlace, stub: StubModel) -> AsyncIterator[Watched]:
    """Run a daemon that has read its secrets; check in the end that nothing it left contains one."""
    async with running(place) as process:
        client, events = await place.connect(), await place.watch(types="all")
        watched = Watched(place, process, stub, client, events)
        # A key that a program prints is known after its first use.
        await watched.ask("set_model", model="third/m")
        await watched.run(text_reply("hello"))
        await watched.ask("set_model", model="openai/m")
        yield watched
        await watched.ask("get_events", after="evt-0")
        artifacts = await _artifacts(watched)
        await process.stop()
    for name, text in (
        ("answers and events", repr(watched.received)),
        ("artifacts", artifacts.decode(errors="replace")),
        ("the daemon's log", place.log_file.read_text()),
        ("standard error", (place.folder / "daemon.log").read_text()),
        *((path.name, path.read_bytes().decode(errors="replace")) for path in _state(place)),
    ):
        assert [each for each in place.secrets if each in text] == [], name


def _state(place: Place) -> list[Path]:
    return [path for path in place.state.rglob("*") if path.is_file()]


async def _artifacts(watched: Watched) -> bytes:
    """Return the bytes of every artifact that a received message names."""
    names = {word for word in repr(watched.received).split("'") if word.startswith("sha256:")}
    parts = []
    for name in sorted(names):
        answer = await watched.client.answer(
            await watched.client.ask("get_artifact", artifact_id=name)
        )
        # Not every hash names an artifact.
        if answer["ok"]:
            parts.append(base64.b64decode(answer["payload"]["data"]))
    return b"\n".join(parts)


@pytest.mark.slow
async def test_keys_in_tool_results_are_redacted(watched: Watched) -> None:
    run = await watched.call(
        ("read", {"path": "leak.txt"}),
        ("grep", {"pattern": "key"}),
        ("bash", {"command": "cat leak.txt; cat leak.txt >&2; exit 3"}),
    )
    for end in of_type(run, "tool_execution_end"):
        assert end["result"].count(REDACTED) >= len(watched.place.secrets), end


@pytest.mark.slow
async def test_a_key_that_a_program_prints_in_pieces_is_redacted(watched: Watched) -> None:
    key = watched.place.in_environment
    (watched.place.work / "slow.sh").write_text(
        "".join(f"printf '%s' '{letter}'; sleep 0.01\n" for letter in key) + "echo; echo done\n"
    )
    run = await watched.call(("bash", {"command": "sh slow.sh"}))
    [end] = of_type(run, "tool_execution_end")
    assert REDACTED in end["result"]
    output = "".join(update["delta"] for update in of_type(run, "tool_execution_update"))
    assert f"{REDACTED}\ndone" in output


@pytest.mark.slow
async def test_keys_in_the_artifact_of_a_long_output_are_redacted(watched: Watched) -> None:
    run = await watched.call(
        ("bash", {"command": 'yes "$(cat leak.txt)" | head -c 3000000'}),
    )
    [end] = of_type(run, "tool_execution_end")
    answer = await watched.ask("get_artifact", artifact_id=end["artifact_id"])
    assert REDACTED.encode() in base64.b64decode(answer["payload"]["data"])


@pytest.mark.slow
async def test_commands_do_not_inherit_the_daemons_secret_variables(watched: Watched) -> None:
    run = await watched.call(
        ("bash", {"command": "env"}),
        ("bash", {"command": "env; tr '\\0' '\\n' < /proc/$PPID/environ"}),
    )
    own, end = of_type(run, "tool_execution_end")
    assert "PATH=" in own["result"]
    assert not [name for name in ("OPENAI_API_KEY", "DEPLOY_TOKEN") if name in own["result"]]
    assert "OPENAI_API_KEY" not in end["result"].split("PWD=")[0]
    assert "PATH=" in end["result"]


async def test_no_command_line_and_no_child_environment_contains_a_key(watched: Watched) -> None:
    watched.stub.script(
        tool_reply(("bash", {"command": "echo begun; sleep 30"})), text_reply("done")
    )
    await watched.ask("prompt", text="go", wait=False)
    await watched.events.until("tool_execution_update")
    seen = list(_processes(watched.process.pid))
    assert len(seen) >= 3, "the daemon, the process that holds the command, and the command"
    keys = watched.place.secrets
    for pid, command_line, environment in seen:
        assert not any(key in command_line for key in keys), command_line
        if pid != watched.process.pid:
            assert not any(key in environment for key in keys), command_line
    await watched.ask("abort")
    watched.received += await watched.events.run()


def _processes(root: int) -> Iterator[tuple[int, str, str]]:
    """Yield pid, command line and environment of a process and its descendants."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    wanted = {root}
    while more := {pid for pid, parent in parents.items() if parent in wanted} - wanted:
        wanted |= more
    for pid in wanted:
        folder = Path(f"/proc/{pid}")
        try:
            command_line = (folder / "cmdline").read_bytes()
            environment = (folder / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        yield pid, os.fsdecode(command_line), os.fsdecode(environment)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "key"),
    [("openai/m", "in_environment"), ("other/m", "in_file"), ("third/m", "printed")],
)
@pytest.mark.parametrize("status", [400, 500])
async def test_a_key_repeated_in_a_servers_error_is_redacted(
    watched: Watched, model: str, key: str, status: int
) -> None:
    await watched.ask("set_model", model=model)
    message = f"Incorrect API key provided: {getattr(watched.place, key)}" + "x" * 20_000
    run = await watched.run(*[error_reply(status, message, retry_after="0")] * 3)
    [error] = of_type(run, "error")
    assert f"Incorrect API key provided: {REDACTED}" in error["cause"]


@pytest.mark.slow
async def test_secrets_in_errors_and_results_of_an_extension_are_redacted(
    watched: Watched,
) -> None:
    run = await watched.call(("telltale", {}), ("says", {}))
    codes = [warning["code"] for warning in of_type(run, "warning")]
    assert codes.count("extension_hook_error") >= 3
    assert all(REDACTED in end["result"] for end in of_type(run, "tool_execution_end"))
    failed = await watched.ask("extension_command", name="telltale")
    assert REDACTED in failed["error"]["cause"]
    selected = await watched.ask("new_session")
    assert REDACTED in selected["payload"]["warnings"][0]["message"]


@pytest.mark.slow
async def test_a_key_in_the_error_of_an_mcp_server_is_redacted(
    place: PlantedPlace, stub: StubModel
) -> None:
    pytest.importorskip("mcp", reason="the extra nousd[mcp] is not installed")
    place.of_mcp = (new_secret("mcp"),)
    with (place.folder / "nousd" / "config.toml").open("a") as settings:
        command = '["sh", "-c", "echo my key is $API_KEY >&2; echo $API_KEY; exit 1"]'
        settings.write(f"[mcp.broken]\ncommand = {command}\nenv.API_KEY = '{place.of_mcp[0]}'\n")
    async with watching(place, stub) as watched:
        await watched.events.subscribe(after="evt-0", types=["mcp_server_status"])
        status = await watched.events.next()
        while status["payload"]["state"] == "connecting":
            status = await watched.events.next()
        watched.received.append(status)
        [server] = (await watched.ask("list_mcp"))["payload"]["servers"]
        assert REDACTED in server["error"]


@pytest.mark.slow
async def test_keys_in_the_result_of_a_clients_call_are_redacted(watched: Watched) -> None:
    accepted = await watched.ask("call_tool", tool="read", args={"path": "leak.txt"})
    call_id = accepted["payload"]["tool_call_id"]
    completed = await watched.events.until("tool_call_completed", tool_call_id=call_id)
    watched.received.append(completed)
    assert completed["payload"]["result"].count(REDACTED) == len(watched.place.secrets)
    found = await watched.ask("get_tool_call", tool_call_id=call_id)
    assert REDACTED in repr(found)


# --- texts of the user ---------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_key_in_the_users_prompt_is_not_redacted(
    place: PlantedPlace, stub: StubModel
) -> None:
    async with running(place):
        client, events = await place.connect(), await place.watch(types="all")
        stub.script(text_reply("I see"))
        text = f"my key is {place.in_environment}"
        await client.request("prompt", text=text, wait=False)
        run = await events.run()
        assert of_type(run, "message_start")[0]["text"] == text
        assert stub.requests[-1].json["messages"][-1]["content"] == text


@pytest.mark.slow
async def test_a_foreign_key_in_a_tool_result_is_not_redacted(watched: Watched) -> None:
    foreign = "ghp_0123456789abcdefghijklmnopqrstuvwxyz"
    await trio.Path(watched.place.work / "notes.txt").write_text(foreign)
    run = await watched.call(("read", {"path": "notes.txt"}))
    [end] = of_type(run, "tool_execution_end")
    assert foreign in end["result"]
