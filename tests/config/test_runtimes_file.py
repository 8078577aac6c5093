"""The tables of the settings file that name agent programs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from nousd.config.config_file import read_config_file
from nousd.config.runtimes_file import ConfiguredRuntime, read_runtimes_file
from nousd.errors import ConfigError

KINDS = {"acp": ("off", "ask"), "lines": ("off",)}


KINDS_OF_SERVERS = {"claude": ("off", "on"), "codex": ("off", "on")}


def read(
    folder: Path, text: str, kinds: Mapping[str, Collection[str]] = KINDS
) -> tuple[ConfiguredRuntime, ...]:
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return read_runtimes_file(read_config_file(path, {}, folder), kinds)


def test_a_table_names_a_program_and_what_it_may(tmp_path: Path) -> None:
    table = """
        [runtimes.reviewer]
        kind = "acp"
        command = ["agent", "--serve"]
        runtime_tools = "ask"
        models = ["large"]
        env = ["AGENT_API_KEY"]
        isolation = "ephemeral"

        [runtimes.plain]
        kind = "lines"
        command = ["plain"]
    """
    assert read(tmp_path, table) == (
        ConfiguredRuntime(
            *("reviewer", "acp", ("agent", "--serve"), "ask", ("large",), ("AGENT_API_KEY",)),
            isolation="ephemeral",
        ),
        ConfiguredRuntime("plain", "lines", ("plain",)),
    )


def test_a_file_without_the_tables_names_no_program(tmp_path: Path) -> None:
    assert read(tmp_path, "") == ()


@pytest.mark.parametrize("kind", ["claude", "codex"])
def test_a_program_on_a_server_has_no_tools_of_its_own(tmp_path: Path, kind: str) -> None:
    table = f'[runtimes.a]\nkind = "{kind}"\ncommand = ["a"]\nmode = "server_side"\n'
    runtime, *_ = read(tmp_path, table, KINDS_OF_SERVERS)
    assert runtime.mode == "server_side"
    with pytest.raises(ConfigError, match="would act on the server's files"):
        read(tmp_path, f'{table}runtime_tools = "on"\n', KINDS_OF_SERVERS)


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ("runtimes = 4", "runtimes must be a table"),
        ('[runtimes.native]\nkind = "acp"', "and not native"),
        ('[runtimes."A B"]\nkind = "acp"', "must be called by at most 32"),
        ('[runtimes.a]\nkind = "acp"', r"\[runtimes.a\] needs a command"),
        ('[runtimes.a]\ncommand = ["a"]', "has the kind ''; there are acp, lines"),
        ('[runtimes.a]\nkind = "acpp"\ncommand = ["a"]', "'acpp'; there are acp, lines"),
        ('[runtimes.a]\nkind = "acp"\ncommnd = ["a"]', "the nearest is command"),
        ('[runtimes.a]\nkind = "acp"\ncommand = "a"', "command"),
        ('[runtimes.a]\nkind = "acp"\ncommand = ["a"]\nruntime_tools = "yes"', "off or ask or on"),
        ('[runtimes.a]\nkind = "acp"\ncommand = ["a"]\nruntime_tools = "on"', "not on"),
        ('[runtimes.a]\nkind = "acp"\ncommand = ["a"]\nisolation = "own"', "isolation"),
        (
            '[runtimes.a]\nkind = "acp"\ncommand = ["a"]\nmode = "in_process"',
            "mode = in_process is not possible: .* keys of every namespace",
        ),
        (
            '[runtimes.a]\nkind = "acp"\ncommand = ["a"]\nmode = "server_side"',
            "mode = server_side is not possible: .* sockets and files of this machine",
        ),
        (
            '[runtimes.a]\nkind = "acp"\ncommand = ["a"]\nenv = ["KEY=secret"]',
            "env has names of variables",
        ),
    ],
)
def test_a_fault_is_named_with_its_table(tmp_path: Path, table: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        read(tmp_path, table)
    assert str(tmp_path / "config.toml") in str(refused.value)
