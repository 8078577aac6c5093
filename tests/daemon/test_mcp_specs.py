"""Valid specifications of MCP servers: no secrets, because they are logged."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nousd.daemon.mcp.specs import parse_server, spec_of
from nousd.errors import InvalidPayload
from nousd.wire.commands import AddMcp

KEY = "sk-ant-0123456789abcdef"


def add_mcp(**fields: Any) -> AddMcp:
    return msgspec.convert({"name": "s", **fields}, AddMcp)


@pytest.mark.behaviour("mcp_secrets_are_not_in_the_log")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"command": ["p"], "env": {"API_KEY": "abcdefgh"}}, "env.API_KEY looks like a secret"),
        ({"command": ["p"], "env": {"KEY": "abcdefgh"}}, "env.KEY looks like a secret"),
        (
            {"command": ["p"], "env": {"GITHUB_PAT": "abcdefgh"}},
            "env.GITHUB_PAT looks like a secret",
        ),
        ({"command": ["p"], "env": {"LEVEL": KEY}}, "env.LEVEL looks like a secret"),
        ({"command": ["p"], "env": {"X": "${A} " + KEY}}, "env.X looks like a secret"),
        ({"command": ["p", "--api-key=abcdefgh"]}, "command holds what looks like a secret"),
        ({"command": ["p", KEY]}, "command holds what looks like a secret"),
        ({"url": f"https://a/mcp?token={KEY}"}, "url must not hold"),
        ({"url": "https://user:pass@a/mcp"}, "url must not hold"),
        (
            {"url": "https://a", "headers": {"X-Any": "9f8a7d"}},
            "headers.X-Any must name a variable",
        ),
        ({"url": "https://a", "headers": {"X": "${A}" + KEY}}, "headers.X must name a variable"),
    ],
)
def test_a_server_with_a_literal_secret_is_rejected(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        parse_server(add_mcp(**given))
    assert str(caught.value).startswith(words)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "command or url is required, and not both"),
        ({"command": []}, "command or url is required, and not both"),
        ({"command": ["p"], "url": "http://a"}, "command or url is required, and not both"),
        ({"command": ["p"], "headers": {"A": "${B}"}}, "headers go with a url"),
        ({"url": "http://a", "env": {"A": "b"}}, "env and cwd go with a command"),
        ({"url": "http://a", "cwd": "/"}, "env and cwd go with a command"),
        ({"url": "file:///a"}, "url must begin with http:// or https://"),
        ({"command": ["p\0"]}, "command must not hold a NUL character"),
        ({"command": ["p"], "env": {"A B": "c"}}, "env.A B must be a variable's name"),
        ({"command": ["p"], "env": {"A": "\0"}}, "env.A must be a variable's name"),
        ({"url": "http://a", "headers": {"A:": "${B}"}}, "headers.A: must be a header's name"),
        (
            {"url": "http://a", "headers": {"A": "${B}\r\nC: d"}},
            "headers.A must be a header's name",
        ),
    ],
)
def test_an_invalid_server_is_rejected_with_the_offending_field(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidPayload) as caught:
        parse_server(add_mcp(**given))
    assert str(caught.value).startswith(words)


def test_an_added_server_becomes_a_spec_with_the_same_values() -> None:
    server = parse_server(
        add_mcp(
            command=["npx", "-y", "@scope/server-files@1.2.3", "/home/me/work"],
            env={"API_KEY": "${FILES_KEY}", "LEVEL": "high", "KEYBOARD": "us", "AUTHOR": "me"},
            cwd="sub",
            tool_classes={"read": ["read"]},
            classes=["exec"],
            tools=["read"],
            timeout_ms=1500,
        )
    )
    spec = spec_of(server)
    assert spec.command == ("npx", "-y", "@scope/server-files@1.2.3", "/home/me/work")
    assert spec.env["LEVEL"] == "high"
    assert spec.classes == {"exec"}
    assert spec.classes_of("read") == {"read"}
    assert (spec.tools, spec.timeout_seconds) == (("read",), 1.5)
    headers = {"Authorization": "Bearer ${TOKEN}"}
    remote = spec_of(parse_server(add_mcp(url="https://a/mcp?profile=x", headers=headers)))
    assert (remote.url, remote.headers) == ("https://a/mcp?profile=x", headers)
    assert remote.classes == {"exec", "network"}


def test_empty_classes_and_tools_differ_from_omitted_ones() -> None:
    none = spec_of(parse_server(add_mcp(command=["p"], classes=[], tools=[])))
    assert none.classes == set()
    assert none.tools == ()
    omitted = spec_of(parse_server(add_mcp(command=["p"])))
    assert omitted.classes == {"exec", "network"}
    assert omitted.tools is None
