"""``nousctl mcp``: requests and output of each form."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Nousctl
from tests.harness.fake_daemon import FakeDaemon, ok

SERVERS = [
    {
        "name": "files",
        "origin": "config",
        "transport": "stdio",
        "state": "backoff",
        "restarts": 1,
        "tools": ["mcp__files__read"],
        "command": ["server-files", "."],
        "error": "it ended; out of memory",
        "left_out": ["odd: its arguments are no object"],
    }
]


@pytest.fixture(autouse=True)
def servers(daemon: FakeDaemon) -> None:
    daemon.on["list_mcp"] = ok("mcp_servers", {"servers": SERVERS, "cursor": "evt-1"})
    for command in ("add_mcp", "remove_mcp", "restart_mcp"):
        daemon.on[command] = ok("accepted", {"command": command})


@pytest.mark.parametrize(
    ("typed", "command", "payload"),
    [
        ("mcp", "list_mcp", {}),
        ("mcp list", "list_mcp", {}),
        ("mcp list --session sess-1", "list_mcp", {"session_id": "sess-1"}),
        ("mcp remove files", "remove_mcp", {"name": "files"}),
        (
            "mcp remove files --session sess-1",
            "remove_mcp",
            {"name": "files", "session_id": "sess-1"},
        ),
        (
            "mcp add files --session sess-1 --env A=b -- npx",
            "add_mcp",
            {"name": "files", "session_id": "sess-1", "env": {"A": "b"}, "command": ["npx"]},
        ),
        ("mcp restart files", "restart_mcp", {"name": "files"}),
        (
            "mcp add files --class read --class exec --tool a --timeout-ms 5 -- npx -y it --url x",
            "add_mcp",
            {
                "name": "files",
                "classes": ["read", "exec"],
                "tools": ["a"],
                "timeout_ms": 5,
                "command": ["npx", "-y", "it", "--url", "x"],
            },
        ),
        (
            "mcp add files --timeout-ms 1.001s -- npx",
            "add_mcp",
            {"name": "files", "timeout_ms": 1001, "command": ["npx"]},
        ),
        (
            "mcp add s --url https://s/mcp --header Authorization=Bearer=${T}",
            "add_mcp",
            {
                "name": "s",
                "url": "https://s/mcp",
                "headers": {"Authorization": "Bearer=${T}"},
            },
        ),
        (
            "mcp add s --env A=${B} --env C= --class none --cwd /work -- p",
            "add_mcp",
            {
                "name": "s",
                "env": {"A": "${B}", "C": ""},
                "classes": [],
                "cwd": "/work",
                "command": ["p"],
            },
        ),
    ],
)
def test_each_subcommand_sends_its_command(
    typed: str, command: str, payload: dict[str, Any], nousctl: Nousctl, daemon: FakeDaemon
) -> None:
    assert nousctl(*typed.split()).code == 0
    (request,) = (heard for heard in daemon.heard if heard["type"] == command)
    assert request["payload"] == payload


def test_what_tells_whether_a_server_is_ready_is_named(nousctl: Nousctl) -> None:
    said = "s is starting; whether it is ready: nousctl mcp list\n"
    assert nousctl("mcp", "add", "s", "--", "p").err == said
    assert nousctl("mcp", "restart", "s").err == said


def test_servers_are_shown_with_their_errors(nousctl: Nousctl) -> None:
    shown = nousctl("mcp").out
    assert shown.splitlines()[0] == "files  backoff  1 tools  server-files ."
    assert "out of memory" in shown
    assert "odd: its arguments are no object" in shown


@pytest.mark.parametrize("typed", ["mcp add", "mcp remove", "mcp add a --env B -- c", "mcp fly"])
def test_invalid_arguments_are_exit_code_2(
    typed: str, nousctl: Nousctl, daemon: FakeDaemon
) -> None:
    assert nousctl(*typed.split()).code == 2
    assert daemon.heard == []
