"""MCP server connections: keeping them alive, results of calls, and misbehaving servers."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from nousd.errors import ToolArgumentsInvalid, ToolError, ToolServerFailed
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.interface import ToolContext, ToolResult
from nousd.tools.mcp import server as server_module
from nousd.tools.mcp.server import McpServer, Status, Surroundings
from nousd.tools.mcp.spec import ServerSpec
from nousd.tools.registry import ToolRegistry
from nousd.wire.limits import MCP_MESSAGE_BYTES_MAX, TOOL_RESULT_BYTES_MAX
from tests.harness.daemon import WAIT_SECONDS

STUB = Path(__file__).with_name("stub_mcp_server.py")


class Host:
    """A managed server, with its statuses and the text it streamed."""

    def __init__(self, spec: ServerSpec, workdir: Path, environ: Mapping[str, str]) -> None:
        self.tools = ToolRegistry()
        self.statuses: list[Status] = []
        self.secrets: list[str] = []
        self._news = trio.Event()
        self._workdir = workdir
        around = Surroundings(environ, workdir, self.secrets.append, self._redacted, self._redacted)
        self.server = McpServer(spec, self.tools, around, self._told)
        self.said: list[str] = []
        self.streams: set[str | None] = set()

    def _redacted(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "[redacted]")
        return text

    def _told(self, _spec: ServerSpec, status: Status) -> None:
        self.statuses.append(status)
        self._news.set()

    async def until(self, holds: Callable[[Status], bool], seconds: float = WAIT_SECONDS) -> Status:
        """Return the first status, past or future, for which ``holds`` is true."""
        seen = 0
        with trio.fail_after(seconds):
            while True:
                for status in self.statuses[seen:]:
                    seen += 1
                    if holds(status):
                        return status
                self._news = trio.Event()
                await self._news.wait()

    async def call(self, tool: str, **args: Any) -> ToolResult:
        async def emit(text: str, stream: str | None = None) -> None:
            self.said.append(text)
            self.streams.add(stream)

        found = self.tools[f"mcp__stub__{tool}"]
        context = ToolContext(PathSandbox(self._workdir, ()), emit)
        with trio.fail_after(WAIT_SECONDS):
            return await found.run(found.validate(args), context)


@asynccontextmanager
async def running_host(
    folder: Path, *flags: str, environ: Mapping[str, str] = {}, **more: Any
) -> AsyncIterator[Host]:
    more = {"command": (sys.executable, "-S", str(STUB), *flags), **more}
    host = Host(ServerSpec(name="stub", **more), folder, environ)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.server.run)
        yield host
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def ready_host(folder: Path, *flags: str, **more: Any) -> AsyncIterator[Host]:
    async with running_host(folder, *flags, **more) as host:
        await host.until(lambda status: status.state == "ready")
        yield host


def is_ready_again(status: Status) -> bool:
    return status.state == "ready" and status.restarts > 0


# --- offered tools -----------------------------------------------------------------------------


async def test_the_tools_of_a_server_are_offered_under_its_name(tmp_path: Path) -> None:
    async with ready_host(tmp_path) as host:
        echo = host.tools["mcp__stub__echo"]
        assert echo.source == "mcp:stub"
        assert echo.description == "Gives the text back."
        assert echo.executed_by == "mcp"
        assert echo.parameters["required"] == ["text"]
        assert host.statuses[-1].protocol_version == "2025-11-25"
        assert (await host.call("echo", text="hello")).text == "hello"
    assert not host.tools


async def test_annotations_of_a_server_do_not_lower_the_classes_of_its_tools(
    tmp_path: Path,
) -> None:
    async with ready_host(tmp_path, tool_classes={"env": frozenset({"read"})}) as host:
        context = ToolContext(PathSandbox(tmp_path, ()), _ignore)
        echo = await host.tools["mcp__stub__echo"].access({}, context)
        assert echo.classes == {"exec", "network"}  # although its annotation is read-only
        assert not host.tools["mcp__stub__echo"].is_read_only
        env = await host.tools["mcp__stub__env"].access({}, context)
        assert env.classes == {"read"}  # set by the user


async def test_only_the_tools_that_the_user_names_are_offered(tmp_path: Path) -> None:
    async with ready_host(tmp_path, tools=("echo", "env")) as host:
        assert list(host.tools) == ["mcp__stub__echo", "mcp__stub__env"]


async def test_invalid_arguments_are_refused_with_the_field(tmp_path: Path) -> None:
    async with ready_host(tmp_path) as host:
        with pytest.raises(ToolArgumentsInvalid, match=r"mcp__stub__echo\.text is required"):
            await host.call("echo")
        with pytest.raises(ToolArgumentsInvalid, match="text must have at most 100 characters"):
            await host.call("echo", text="x" * 101)


async def test_a_changed_list_of_tools_replaces_the_tools_and_changes_their_definitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "REFRESH_SECONDS", 0)
    async with ready_host(tmp_path) as host:
        context = ToolContext(PathSandbox(tmp_path, ()), _ignore)
        before = await host.tools["mcp__stub__echo"].access({}, context)
        other = await host.tools["mcp__stub__env"].access({}, context)
        assert (await host.call("change")).text == "changed"
        await host.until(lambda status: "mcp__stub__new" in status.tools)
        after = await host.tools["mcp__stub__echo"].access({}, context)
        assert before.definition != after.definition
        assert other == await host.tools["mcp__stub__env"].access({}, context)


class NewsSession:
    """A session with a server that has no tools, and announces changes of them on request."""

    protocol_version = "2025-11-25"

    def __init__(self) -> None:
        self.changed = trio.Event()
        self.looked = trio.Event()

    async def tools(self) -> list[Any]:
        self.looked.set()
        return []

    async def follow_changes(self) -> None:
        await trio.sleep_forever()

    async def delay_of_news(self) -> float:
        """Announce a change, and return the seconds until the tools are listed."""
        told_at, self.looked = trio.current_time(), trio.Event()
        self.changed.set()
        await self.looked.wait()
        await trio.testing.wait_all_tasks_blocked()
        return trio.current_time() - told_at


async def test_the_delay_before_a_refresh_doubles_until_a_quiet_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    session = NewsSession()

    @asynccontextmanager
    async def open_session(*_: object, **__: object) -> AsyncIterator[NewsSession]:
        yield session

    module = SimpleNamespace(open_session=open_session)
    monkeypatch.setitem(server_module._loaded, server_module._SESSION, module)
    async with running_host(tmp_path) as host:
        await host.until(lambda status: status.state == "ready")
        delays = [await session.delay_of_news() for _ in range(8)]
        assert delays == [1, 2, 4, 8, 16, 32, 60, 60]
        await trio.sleep(server_module.STEADY_SECONDS)
        assert await session.delay_of_news() == 1


async def _ignore(_text: str, _stream: object = None) -> None:
    pass


# --- processes ---------------------------------------------------------------------------------


async def test_a_server_receives_its_variables_and_no_secret_of_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET_OF_THE_DAEMON", "do-not-tell")
    given = {"KEY": "${TOKEN_OF_MINE}", "LEVEL": "high"}
    environ = {"TOKEN_OF_MINE": "s3cret-token"}
    async with ready_host(tmp_path, env=given, environ=environ) as host:
        seen = json.loads((await host.call("env")).text)
        assert seen["KEY"] == "s3cret-token"
        assert seen["LEVEL"] == "high"
        assert "A_SECRET_OF_THE_DAEMON" not in seen
        assert host.secrets == ["s3cret-token"]
        assert "s3cret-token" not in _command_lines()


async def test_a_variable_that_is_not_set_is_named(tmp_path: Path) -> None:
    async with running_host(tmp_path, env={"KEY": "${NOT_THERE}"}) as host:
        status = await host.until(lambda status: status.state == "backoff")
        assert status.error == "the environment variable NOT_THERE is not set"


def _command_lines() -> str:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            continue
    return "\n".join(lines)


async def test_the_process_of_a_stopped_server_is_gone(tmp_path: Path) -> None:
    async with ready_host(tmp_path) as host:
        pid = int((await host.call("pid")).text)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# --- results of calls --------------------------------------------------------------------------


async def test_content_that_is_not_text_is_described_and_stored(tmp_path: Path) -> None:
    async with ready_host(tmp_path) as host:
        result = await host.call("picture")
        assert result.text.splitlines() == [
            "look:",
            "[image, image/png, 3 bytes; it stands in the artifact of this result]",
            "[resource file:///a]",
            "inside",
            "[link b: file:///b]",
        ]
        assert isinstance(result.full, bytes)
        assert json.loads(result.full)[1]["data"] == "QUJD"
        assert (await host.call("structured")).text == '{\n "a": 1\n}'
        assert (await host.call("empty")).text == "(no output)"
        assert result.execution_env == "unknown"


async def test_a_long_result_is_cut_and_stored_whole(tmp_path: Path) -> None:
    async with ready_host(tmp_path) as host:
        result = await host.call("large")
        assert len(result.text.encode()) < TOOL_RESULT_BYTES_MAX + 200
        assert "[Output cut" in result.text
        assert isinstance(result.full, bytes)
        assert len(result.full) == 500_000


async def test_progress_and_the_final_text_are_streamed(tmp_path: Path) -> None:
    async with ready_host(tmp_path) as host:
        assert (await host.call("progress")).text == "done"
        assert "".join(host.said) == "[1/2] step 1\n[2/2] step 2\ndone"
        assert host.streams == {"progress"}


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("refuse", "mcp_error: I will not"),
        ("wrong", "mcp_error: the answer is not as the protocol has it"),
        ("no_object", "mcp_error: the answer is not as the protocol has it"),
    ],
)
async def test_an_invalid_result_fails_only_its_call(tool: str, words: str, tmp_path: Path) -> None:
    async with ready_host(tmp_path) as host:
        with pytest.raises(ToolError, match=words):
            await host.call(tool)
        assert (await host.call("echo", text="still here")).text == "still here"
        assert host.server.status.restarts == 0


async def test_a_failed_tool_is_an_error_with_its_message(tmp_path: Path) -> None:
    async with ready_host(tmp_path) as host:
        result = await host.call("fail")
        assert (result.text, result.is_error) == ("it went wrong", True)


async def test_a_sampling_request_of_a_server_is_refused(tmp_path: Path) -> None:
    async with ready_host(tmp_path) as host:
        assert "not supported" in (await host.call("ask")).text


# --- misbehaving servers -----------------------------------------------------------------------


@pytest.mark.slow
async def test_an_unanswered_call_times_out_while_others_succeed(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with ready_host(tmp_path, timeout_seconds=1) as host:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_fails_in_time, host)
            await wait_all_tasks_blocked()
            assert (await host.call("echo", text="meanwhile")).text == "meanwhile"
            mock_clock.jump(1)
        assert json.loads((await host.call("cancelled")).text) != []


async def _fails_in_time(host: Host) -> None:
    with pytest.raises(ToolServerFailed, match=r"mcp_timed_out: .* did not answer for 1 seconds"):
        await host.call("hang")


async def test_a_cancelled_call_is_cancelled_at_the_server(tmp_path: Path) -> None:
    async with ready_host(tmp_path) as host:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.call, "hang")
            await wait_all_tasks_blocked()
            # The server takes one message after the other, so it has the call.
            await host.call("echo", text="meanwhile")
            nursery.cancel_scope.cancel()
        assert len(json.loads((await host.call("cancelled")).text)) == 1


async def test_a_server_that_dies_fails_its_calls_and_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "FIRST_PAUSE_SECONDS", 0.01)
    count = tmp_path / "starts"
    async with ready_host(tmp_path, "--count", str(count)) as host:
        offered = list(host.tools)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_loses_its_server, host, "hang")
            await trio.testing.wait_all_tasks_blocked(0.05)
            nursery.start_soon(_loses_its_server, host, "die")
        failed = await host.until(lambda status: status.state == "backoff")
        assert failed.error == "it ended"
        await host.until(is_ready_again)
        assert list(host.tools) == offered
        assert (await host.call("echo", text="back")).text == "back"
        assert count.read_text() == "started\n" * 2


async def _loses_its_server(host: Host, tool: str) -> None:
    with pytest.raises(ToolServerFailed, match="mcp_server_failed: the server stub"):
        await host.call(tool)


@pytest.mark.slow
async def test_a_server_that_stops_responding_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_PAUSE_SECONDS", "REFRESH_SECONDS"):
        monkeypatch.setattr(server_module, name, 0.01)
    async with ready_host(tmp_path, timeout_seconds=0.5) as host:
        monkeypatch.setattr(server_module, "LISTING_SECONDS", 0.5)
        with pytest.raises(ToolServerFailed, match="mcp_timed_out"):
            await host.call("freeze")
        failed = await host.until(lambda status: status.state == "backoff")
        assert failed.error == "it did not list its tools in 0.5 seconds"
        monkeypatch.setattr(server_module, "LISTING_SECONDS", WAIT_SECONDS)
        await host.until(is_ready_again)
        assert (await host.call("echo", text="back")).text == "back"


async def test_servers_that_start_while_the_sdk_is_imported_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = SimpleNamespace(begun=threading.Event(), open=threading.Event())
    (tmp_path / "slow_session.py").write_text(
        "import gate\n"
        "gate.begun.set()\n"
        "assert gate.open.wait(60)\n"
        "from nousd.tools.mcp.session import open_session\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "gate", gate)
    monkeypatch.setattr(server_module, "_SESSION", "slow_session")
    async with running_host(tmp_path) as first:
        assert await trio.to_thread.run_sync(gate.begun.wait, WAIT_SECONDS)
        async with running_host(tmp_path) as second:
            await trio.testing.wait_all_tasks_blocked()
            gate.open.set()
            for host in (first, second):
                await host.until(lambda status: status.state == "ready")


@pytest.mark.slow
async def test_a_message_that_is_too_large_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "FIRST_PAUSE_SECONDS", 0.01)
    async with ready_host(tmp_path) as host:
        with pytest.raises(ToolServerFailed):
            await host.call("too_large")
        failed = await host.until(lambda status: status.state == "backoff")
        assert failed.error == f"it sent a message of more than {MCP_MESSAGE_BYTES_MAX} bytes"
        await host.until(is_ready_again)


@pytest.mark.slow
async def test_a_noisy_server_works_and_its_logged_lines_are_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="nousd.tools.process.line_conversation")
    async with ready_host(tmp_path, "--chatty") as host:
        assert (await host.call("echo", text="hello")).text == "hello"
    lines = [record for record in caplog.records if "a word of mine" in record.getMessage()]
    assert 0 < len(lines) <= 100


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--silent", "--no-list"])
async def test_a_server_that_never_responds_times_out(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nousd.tools.mcp import session

    monkeypatch.setattr(session, "CONNECT_SECONDS", 0.5 if flag == "--silent" else 20)
    monkeypatch.setattr(server_module, "LISTING_SECONDS", 0.5)
    async with running_host(tmp_path, flag) as host:
        status = await host.until(lambda status: status.state == "backoff")
        assert status.error in {
            "it did not answer within 0.5 seconds",
            "it did not list its tools in 0.5 seconds",
        }


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("no-such-program-of-ours",), "there is no program no-such-program-of-ours"),
        (("/nowhere/at/all",), "it ended; /nowhere/at/all: No such file or directory"),
        ((sys.executable, "-S", "-c", "raise SystemExit('bad day')"), "it ended; bad day"),
    ],
)
async def test_the_reason_why_a_server_does_not_start_is_reported(
    command: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    async with running_host(tmp_path, command=command) as host:
        status = await host.until(lambda status: status.state == "backoff")
        assert status.error == words


async def test_secrets_are_redacted_in_the_error_of_a_server(tmp_path: Path) -> None:
    program = "import os; raise SystemExit('bad key: ' + os.environ['KEY'])"
    async with running_host(
        tmp_path,
        command=(sys.executable, "-S", "-c", program),
        env={"KEY": "${TOKEN}"},
        environ={"TOKEN": "s3cret-token"},
    ) as host:
        status = await host.until(lambda status: status.state == "backoff")
        assert status.error == "it ended; bad key: [redacted]"


async def test_the_pauses_double_and_restarts_stop_after_ten_attempts(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    server_module.load_sdk_session()  # no thread is waited for under this clock

    async with running_host(tmp_path, command=("no-such-program-of-ours",)) as host:
        began = trio.current_time()
        await host.until(lambda status: status.state == "failed", seconds=1000)
        assert trio.current_time() - began == pytest.approx(1 + 2 + 4 + 8 + 16 + 32 + 60 * 3, abs=2)
        assert host.server.status.restarts == 9
        await trio.sleep(1000)
        assert host.server.status.restarts == 9
    assert msgspec.structs.asdict(host.statuses[0])["error"]
