"""Independent MCP servers, in both generations of the protocol and over both transports.

One is for Node (``npm ci --prefix tests/everything``), one for Python (``mcp-server-time``, one of the
development tools). Where one is missing, its tests are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.harness.foreign_server import foreign_server
from tests.tools.test_mcp_servers import Host, running_host

PROGRAM: Final = (
    Path(__file__).parent.parent
    / "everything/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
)

START_SECONDS: Final = 60

pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")  # the SDK's


def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("Node is not installed, which the independent MCP server runs on")
    if not PROGRAM.exists():
        pytest.skip("the independent MCP server is missing: npm ci --prefix tests/everything")
    return found


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The URL of the server's streamable HTTP endpoint."""
    argv = (node(), PROGRAM, "streamableHttp")
    with foreign_server(*argv, env={"PORT": "0"}, ready="listening on port") as process:
        yield f"http://127.0.0.1:{_port_of(process.pid)}/mcp"


def _port_of(pid: int) -> int:
    """Return the port on which a process listens."""
    sockets = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                return int(fields[1].rpartition(":")[2], 16)
    raise AssertionError("the independent MCP server listens nowhere")


@asynccontextmanager
async def ready_host(folder: Path, **spec: Any) -> AsyncIterator[Host]:
    async with running_host(folder, **spec) as host:
        with trio.fail_after(START_SECONDS):
            await host.until(lambda status: status.state == "ready", START_SECONDS)
        yield host


async def play_everything(host: Host) -> None:
    assert host.server.status.left_out == ()
    assert (await host.call("echo", message="hello")).text == "Echo: hello"
    assert "42" in (await host.call("get-sum", a=40, b=2)).text
    picture = await host.call("get-tiny-image")
    assert "[image, image/png," in picture.text
    assert isinstance(picture.full, bytes)
    assert json.loads(picture.full)[1]["type"] == "image"
    weather = await host.call("get-structured-content", location="Chicago")
    assert "temperature" in weather.text
    await host.call("trigger-long-running-operation", duration=0.2, steps=2)
    assert "".join(host.said).startswith("[1/2]")


async def test_a_node_server_with_a_handshake_works_over_stdio(tmp_path: Path) -> None:
    async with ready_host(tmp_path, command=(node(), str(PROGRAM), "stdio")) as host:
        assert host.server.status.protocol_version == "2025-11-25"
        await play_everything(host)


async def test_the_node_server_works_over_streamable_http(tmp_path: Path, url: str) -> None:
    async with ready_host(tmp_path, command=(), url=url) as host:
        await play_everything(host)


@pytest.mark.slow
async def test_a_python_server_without_a_handshake_works_over_stdio(tmp_path: Path) -> None:
    if importlib.util.find_spec("mcp_server_time") is None:
        pytest.skip("mcp-server-time is not installed")
    command = (sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC")
    async with ready_host(tmp_path, command=command) as host:
        assert host.server.status.protocol_version == "2026-07-28"
        answer = await host.call("get_current_time", timezone="Europe/Berlin")
        assert json.loads(answer.text)["timezone"] == "Europe/Berlin"
        wrong = await host.call("get_current_time", timezone="Nowhere/AtAll")
        assert wrong.is_error
