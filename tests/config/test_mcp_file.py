"""The MCP server tables of the settings file."""

from __future__ import annotations

from pathlib import Path

import pytest

from nousd.config.config_file import read_config_file
from nousd.config.mcp_file import ConfiguredMcpServer, read_mcp_file
from nousd.config.resolve import resolve
from nousd.daemon.mcp.specs import specs_of_settings
from nousd.errors import ConfigError


def read(folder: Path, text: str, mode: int = 0o600) -> tuple[ConfiguredMcpServer, ...]:
    path = folder / "config.toml"
    path.write_text(text)
    path.chmod(mode)
    return read_mcp_file(read_config_file(path, {}, folder))


def test_a_server_has_the_values_of_its_tables(tmp_path: Path) -> None:
    servers = read(
        tmp_path,
        """
        [mcp.files]
        command = ["server-files", "."]
        cwd = "sub"
        tools = ["read_file"]
        classes = ["exec"]
        timeout_ms = "5s"
        [mcp.files.env]
        API_KEY = "${FILES_KEY}"
        LEVEL = "high"
        [mcp.files.tool_classes]
        read_file = ["read"]
        [mcp.search]
        url = "https://search.example/mcp"
        enabled = false
        [mcp.search.headers]
        Authorization = "Bearer s3cret-token"
        """,
    )
    secrets: list[str] = []
    found = specs_of_settings(servers, secrets.append)
    (files,), (search,) = found.enabled, found.disabled
    assert files.command == ("server-files", ".")
    assert files.cwd == tmp_path / "sub"
    assert files.env == {"API_KEY": "${FILES_KEY}", "LEVEL": "high"}
    assert files.classes_of("read_file") == {"read"}
    assert files.classes_of("other") == {"exec"}
    assert files.tools == ("read_file",)
    assert files.timeout_seconds == 5
    assert search.url == "https://search.example/mcp"
    assert search.classes == {"exec", "network"}
    assert secrets == ["Bearer s3cret-token"]
    assert "s3cret-token" not in repr(servers)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mcp = 5", "mcp must be a table, as in [mcp]"),
        ("[mcp.My]\ncommand = ['a']", "[mcp.My] must be called by at most 32 lower-case letters"),
        (f"[mcp.{'x' * 33}]\ncommand = ['a']", "must be called by at most 32"),
        ("[mcp.a]", "[mcp.a] needs a command or a url, and not both"),
        ("[mcp.a]\ncommand = ['a']\nurl = 'http://a'", "needs a command or a url, and not both"),
        ("[mcp.a]\ncommand = 'a'", "command must be a list of texts"),
        ("[mcp.a]\ncommand = []", "command must be a list of texts"),
        ("[mcp.a]\nurl = 'ftp://a'", "url must be one of http or https"),
        (
            "[mcp.a]\nurl = 'http://u:p@a'",
            "url must be one of http or https without a name or password in it",
        ),
        ("[mcp.a]\ncomand = ['a']", "unknown key 'comand' in [mcp.a]"),
        ("[mcp.a]\ncommand = ['a']\ntimeout_ms = 0", "timeout_ms must be a duration"),
        ("[mcp.a]\ncommand = ['a']\nclasses = ['fly']", "names the class 'fly'; there are read"),
        ("[mcp.a]\ncommand = ['a']\n[mcp.a.env]\n'A B' = 'c'", "the name 'A B' is not allowed"),
        ("[mcp.a]\ncommand = ['a']\n[mcp.a.env]\nA = 5", "A must be a text"),
        ("[mcp.a]\ncommand = ['a']\n[mcp.a.tool_classes]\nt = 'read'", "t must be a list of texts"),
    ],
)
def test_an_invalid_server_is_refused_with_file_and_reason(
    text: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)
    assert "config.toml" in str(caught.value)


@pytest.mark.parametrize(
    "table",
    ["[mcp.a.headers]\nX = 's3cret-token'", "[mcp.a.env]\nAPI_KEY = 's3cret-token'"],
)
def test_a_key_in_a_file_open_to_others_is_refused(table: str, tmp_path: Path) -> None:
    text = f"[mcp.a]\nurl = 'http://a'\n{table}"
    assert read(tmp_path, text)
    with pytest.raises(ConfigError, match=r"holds a key, and .* is open to other users") as caught:
        read(tmp_path, text, 0o644)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "table", ["[mcp.a.headers]\nX = '${TOKEN}'", "[mcp.a.env]\nLEVEL = 'high'"]
)
def test_values_that_are_not_keys_are_accepted_in_any_file(table: str, tmp_path: Path) -> None:
    assert read(tmp_path, f"[mcp.a]\nurl = 'http://a'\n{table}", 0o644)


def test_the_settings_contain_the_servers(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[mcp.a]\ncommand = ['a']\n")
    settings = resolve({"state_dir": tmp_path, "workdir": tmp_path}, {}, path).settings
    assert [server.name for server in settings.mcp] == ["a"]
