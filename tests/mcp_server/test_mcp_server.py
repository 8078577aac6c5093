"""``nousd mcp``, tested with the client of the official SDK."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from subprocess import PIPE
from typing import Any, Final, Literal

import mcp_types
import pytest
import trio
from mcp import Client, MCPError, StdioServerParameters

from nousd.client.connection import connect
from nousd.daemon.policy.permissions import RulePermissions
from nousd.errors import DaemonUnreachable
from nousd.mcp_server.calls import CallSession, DaemonTools
from nousd.mcp_server.host import make_server
from nousd.providers.setup.registry import make_provider
from nousd.tools.mcp.spec import ServerSpec
from tests.harness.daemon import WAIT_SECONDS, Daemon, socket_daemon
from tests.harness.daemon import Client as Wire

STUB = Path(__file__).parent.parent / "tools" / "stub_mcp_server.py"
MODES: tuple[Literal["auto", "legacy"], ...] = ("auto", "legacy")
"""Both generations of the protocol."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private folder with a path short enough for Unix sockets."""
    path = Path(tempfile.mkdtemp(prefix="nousd-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@asynccontextmanager
async def host(
    folder: Path, *, mode: Literal["auto", "legacy"] = "auto", **options: Any
) -> AsyncIterator[tuple[Client, Daemon]]:
    """Run a daemon and a client of an MCP server with its tools."""
    session = CallSession(options.pop("session_id", None), options.pop("workspace", None))
    names = options.pop("names", None)
    with trio.fail_after(WAIT_SECONDS):
        async with socket_daemon(folder, provider=make_provider("mock"), **options) as daemon:
            tools = DaemonTools(folder / "nous.sock", session=session, names=names)
            server = make_server(lambda _: nullcontext(tools))
            async with Client(server, mode=mode, cache=None) as client:
                yield client, daemon


def text_of(result: mcp_types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, mcp_types.TextContent)
    return block.text


async def records_of(client: Wire) -> list[dict[str, Any]]:
    calls = (await client.request("list_tool_calls"))["calls"]
    return [
        (await client.request("get_tool_call", tool_call_id=call["tool_call_id"]))["call"]
        for call in calls
    ]


@pytest.mark.behaviour("our_tools_are_served_to_mcp_clients")
@pytest.mark.parametrize("mode", MODES)
async def test_tools_are_listed_called_and_logged(
    mode: Literal["auto", "legacy"], folder: Path
) -> None:
    async with host(folder, mode=mode) as (client, daemon):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {"read", "write", "bash"} <= tools.keys()
        assert tools["write"].input_schema["required"] == ["path", "content"]
        written = await client.call_tool("write", {"path": "a.txt", "content": "hello"})
        assert not written.is_error
        assert text_of(await client.call_tool("read", {"path": "a.txt"})) == "hello"
        records = await records_of(await daemon.connect())
        assert [record["tool_name"] for record in records] == ["read", "write"]
        assert all(record["executed"] and "run_id" not in record for record in records)


@pytest.mark.behaviour("our_tools_are_served_to_mcp_clients")
async def test_mcp_calls_are_confined_to_the_workdir(folder: Path) -> None:
    async with host(folder) as (client, _):
        (folder / "secret.txt").write_text("secret")
        refused = await client.call_tool("read", {"path": "../secret.txt"})
        assert refused.is_error
        assert "path_outside_workdir" in text_of(refused)


@pytest.mark.behaviour("our_tools_are_served_to_mcp_clients")
async def test_mcp_calls_work_in_the_chosen_workspace(folder: Path) -> None:
    deep = folder / "work" / "deep"
    deep.mkdir(parents=True)
    async with host(folder, workspace=str(deep)) as (client, _):
        await client.call_tool("write", {"path": "a.txt", "content": "hello"})
        assert (deep / "a.txt").read_text() == "hello"


@pytest.mark.behaviour("mcp_clients_are_refused_with_the_reason")
async def test_a_call_nobody_can_approve_is_refused_with_the_reason_and_the_policy(
    folder: Path,
) -> None:
    async with host(folder, permissions=RulePermissions("ask")) as (client, _):
        refused = await client.call_tool("write", {"path": "a.txt", "content": "x"})
        assert refused.is_error
        assert refused.structured_content is not None
        assert refused.structured_content["ok"] is False
        assert refused.structured_content["error"] == text_of(refused)
        snapshot = refused.structured_content["policy_snapshot"]
        assert snapshot["permission_mode"] == "ask"
        assert {source["source"] for source in snapshot["sources"]} >= {"rules", "mode"}
        assert not (folder / "work" / "a.txt").exists()


@pytest.mark.behaviour("mcp_clients_are_refused_with_the_reason")
async def test_another_client_of_the_daemon_can_approve_a_call(folder: Path) -> None:
    async with host(folder, permissions=RulePermissions("ask")) as (client, daemon):
        events = await daemon.watch(types="all", confirms=True)
        answering = await daemon.connect()

        async def say_yes() -> None:
            request = (await events.until("permission_requested"))["payload"]
            named = {key: request[key] for key in ("tool_call_id", "attempt", "input_hash")}
            await answering.request("confirm_tool", **named, decision="once")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(say_yes)
            written = await client.call_tool("write", {"path": "a.txt", "content": "x"})
        assert not written.is_error
        assert (folder / "work" / "a.txt").read_text() == "x"


@pytest.mark.behaviour("mcp_clients_cancel_calls")
async def test_a_call_cancelled_by_its_client_is_aborted(folder: Path) -> None:
    async with host(folder) as (client, daemon):
        events = await daemon.watch(types="all")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "bash", {"command": "echo going; sleep 600"})
            await events.until("tool_call_output")
            nursery.cancel_scope.cancel()
        completed = await events.until("tool_call_completed")
        assert completed["payload"]["stop_reason"] == "aborted"
        assert text_of(await client.call_tool("bash", {"command": "echo on"})) == "on"


async def test_a_call_whose_client_disconnected_is_aborted(folder: Path) -> None:
    async def gone(_piece: str) -> None:
        raise trio.BrokenResourceError

    with trio.fail_after(WAIT_SECONDS):
        async with socket_daemon(folder, provider=make_provider("mock")) as daemon:
            events = await daemon.watch(types="all")
            tools = DaemonTools(folder / "nous.sock", session=CallSession(), names=None)
            with pytest.raises(trio.BrokenResourceError):
                await tools.call("bash", {"command": "echo going; sleep 600"}, gone)
            completed = await events.until("tool_call_completed")
            assert completed["payload"]["stop_reason"] == "aborted"


async def test_progress_is_reported_and_a_long_result_is_complete(
    folder: Path,
) -> None:
    told: list[str | None] = []

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    async with host(folder) as (client, _):
        command = "for i in $(seq 2000); do echo line-$i; done"
        result = await client.call_tool("bash", {"command": command}, progress_callback=tell)
        assert "line-1\n" in text_of(result)
        assert "line-2000" in text_of(result)
        assert told
        assert told[0] is not None
        assert told[0].startswith("line-1")


async def test_calls_share_a_session_of_their_own_and_leave_the_active_one(
    folder: Path,
) -> None:
    async with host(folder) as (client, daemon):
        wire = await daemon.connect()
        mine = (await wire.request("new_session", name="mine"))["session_id"]
        for _ in range(2):
            await client.call_tool("ls", {})
        assert (await wire.request("get_state"))["session_id"] == mine
        sessions = (await wire.request("list_sessions"))["sessions"]
        assert sorted(session["name"] for session in sessions) == ["mcp", "mine"]


async def test_only_named_tools_are_served_and_never_those_of_other_mcp_servers(
    folder: Path,
) -> None:
    spec = ServerSpec(name="stub", command=(sys.executable, "-S", str(STUB)))
    async with host(folder, mcp_servers=(spec,)) as (client, daemon):
        statuses = await daemon.watch(after="evt-0", types=["mcp_server_status"])
        await statuses.until("mcp_server_status", state="ready")
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert not any(name.startswith("mcp__") for name in names)
        refused = await client.call_tool("mcp__stub__echo", {"text": "x"})
        assert text_of(refused) == "tool_not_found: mcp__stub__echo"
    async with host(folder, names=["read"]) as (client, _):
        assert [tool.name for tool in (await client.list_tools()).tools] == ["read"]
        assert (await client.call_tool("write", {"path": "a", "content": "b"})).is_error


async def test_a_missing_daemon_is_an_error_of_the_call(folder: Path) -> None:
    tools = DaemonTools(folder / "nous.sock", session=CallSession(), names=None)
    server = make_server(lambda _: nullcontext(tools))
    async with Client(server, cache=None) as client:
        result = await client.call_tool("read", {"path": "a"})
        assert result.is_error
        assert "no daemon listens" in text_of(result)
        with pytest.raises(MCPError, match="no daemon listens"):
            await client.list_tools()


INITIALIZE: Final = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
    b'"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}\n'
)


# --- the program -------------------------------------------------------------------------------


def program(folder: Path) -> StdioServerParameters:
    (folder / "state").mkdir(mode=0o700)
    (folder / "work").mkdir()
    (folder / "config.toml").touch()
    serve = {
        "--state-dir": folder / "state",
        "--workdir": folder / "work",
        "--config": folder / "config.toml",
    }
    options = [str(word) for option in serve.items() for word in option]
    socket = str(folder / "s.sock")
    return StdioServerParameters(
        command=sys.executable, args=["-m", "nousd", "mcp", "--socket", socket, "--", *options]
    )


@pytest.mark.slow
@pytest.mark.behaviour("nousd_mcp_brings_a_daemon_along")
async def test_the_program_starts_a_missing_daemon_and_stops_it_on_exit(
    folder: Path,
) -> None:
    with trio.fail_after(WAIT_SECONDS):
        async with Client(program(folder), cache=None) as client:
            await client.call_tool("write", {"path": "a.txt", "content": "hello"})
            assert (folder / "work" / "a.txt").read_text() == "hello"
            async with connect(folder / "s.sock") as daemon:
                await daemon.request("ping", {})
        with pytest.raises(DaemonUnreachable):
            async with connect(folder / "s.sock") as daemon:
                await daemon.request("ping", {})


@pytest.mark.slow
async def test_a_daemon_that_does_not_start_is_said_in_a_line(folder: Path) -> None:
    wrong = program(folder)
    with trio.fail_after(WAIT_SECONDS):
        done = await trio.run_process(
            [wrong.command, *wrong.args, "--no-such-option"], capture_stderr=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.endswith(b"and one could not be started: it says why above\n")
    assert b"Traceback" not in done.stderr


@asynccontextmanager
async def running_program(parameters: StdioServerParameters) -> AsyncIterator[trio.Process]:
    """Start the program and wait for its answer to the first request."""
    with trio.fail_after(WAIT_SECONDS):
        process = await trio.lowlevel.open_process(
            [parameters.command, *parameters.args], stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        async with process.stdin, process.stdout, process.stderr:
            await process.stdin.send_all(INITIALIZE)
            assert b'"serverInfo"' in await process.stdout.receive_some()
            yield process


@pytest.mark.slow
@pytest.mark.behaviour("nousd_mcp_brings_a_daemon_along")
async def test_a_signal_stops_the_program_and_the_daemon_that_it_started(folder: Path) -> None:
    async with running_program(program(folder)) as process:
        process.terminate()
        assert await process.wait() == 128 + signal.SIGTERM
    with pytest.raises(DaemonUnreachable):
        async with connect(folder / "s.sock") as daemon:
            await daemon.request("ping", {})


@pytest.mark.slow
@pytest.mark.behaviour("nousd_mcp_brings_a_daemon_along")
async def test_the_daemon_stops_when_the_program_is_killed(folder: Path) -> None:
    async with running_program(program(folder)) as process:
        process.kill()
        await process.wait()
        assert process.stderr is not None
        # The daemon shares stderr, so it ends when both processes are gone.
        said = b"".join([chunk async for chunk in process.stderr])
        assert b'"stopped"' in said


@pytest.mark.slow
@pytest.mark.behaviour("nousd_mcp_brings_a_daemon_along")
async def test_a_program_starts_its_own_daemon_when_the_shared_one_is_gone(folder: Path) -> None:
    parameters = program(folder)
    async with running_program(parameters) as first, Client(parameters, cache=None) as second:
        await second.call_tool("write", {"path": "a.txt", "content": "hello"})
        assert first.stdin is not None
        await first.stdin.aclose()
        assert await first.wait() == 0
        result = await second.call_tool("read", {"path": "a.txt"})
        assert "hello" in text_of(result)
