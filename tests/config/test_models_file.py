"""The model tables of the settings file, and the messages for invalid ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nousd.config import config_file, models_file
from nousd.config.models_file import ModelsFile, ModelTable, read_models_file
from nousd.config.resolve import resolve, resolve_socket
from nousd.errors import ConfigError
from tests.config.conftest import write

KEY = "sk-very-secret"

WHOLE = f"""
[providers.anthropic]
api_key_command = ["pass", "show", "it"]
[providers.work]
dialect = "openai"
api_base = "https://llm.example/v1"
api_key = " {KEY} "
model = "large"
[models."work/vendor/large"]
context_window = 200000
input_price = 3
output_price = 15.0
cache_read_price = 0.3
cache_write_price = 0
attachments = ["image/*", "application/pdf", "*/*"]
[models."openai/gpt"]
[aliases]
big = "work/vendor/large"
"""


def tables(path: Path) -> ModelsFile:
    return read_models_file(config_file.read_config_file(path, {}, Path("/")))


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve({}, {}, path)
    message_shown = str(caught.value)
    assert "\n" not in message_shown
    return message_shown


def test_the_tables_are_read_in_order(home: Path) -> None:
    file_tables = tables(write(home / "c.toml", WHOLE))
    assert list(file_tables.providers) == ["anthropic", "work"]
    anthropic, work = file_tables.providers.values()
    assert anthropic.api_key_command == ("pass", "show", "it")
    assert (work.dialect, work.api_base, work.model) == (
        "openai",
        "https://llm.example/v1",
        "large",
    )
    assert work.api_key is not None
    assert work.api_key.reveal() == KEY
    assert file_tables.models == {
        "work/vendor/large": ModelTable(
            context_window=200_000,
            input_price=3.0,
            output_price=15.0,
            cache_read_price=0.3,
            cache_write_price=0.0,
            attachments=("image/*", "application/pdf", "*/*"),
        ),
        "openai/gpt": ModelTable(),
    }
    assert file_tables.aliases == {"big": "work/vendor/large"}


def test_a_file_without_tables_is_empty(home: Path) -> None:
    assert tables(write(home / "c.toml", "verbose = true")) == ModelsFile({}, {}, {})


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("providers = 1", "providers must be a table, as in [providers] (file {file})"),
        ("providers.work = 1", "providers.work must be a table, as in [providers.work]"),
        (
            "[providers.openai]\napi_bse = ''",
            "unknown key 'api_bse' in [providers.openai] of file {file}; the nearest is api_base",
        ),
        (
            '[models."openai/gpt"]\ncontext-windw = 1',
            (
                "unknown key 'context-windw' in [models.\"openai/gpt\"] of file {file}; "
                "the nearest is context_window"
            ),
        ),
        (
            "[providers.work]\napi_base = 'http://h'",
            (
                "[providers.work] needs a dialect, one of openai, openai-responses, anthropic, gemini, "
                "mock (file {file})"
            ),
        ),
        (
            "[providers.work]\ndialect = 'opnai'",
            (
                "dialect must be openai or openai-responses or anthropic or gemini or mock, not 'opnai' "
                "(file {file}, [providers.work])"
            ),
        ),
        (
            "[providers.openai]\ndialect = 'gemini'",
            "[providers.openai] is called like a dialect and must speak it, not gemini",
        ),
        ("[providers.Work]\ndialect = 'openai'", "[providers.Work] must be called by at most 64"),
        ("[providers.a_b]\ndialect = 'openai'", "lower-case letters, digits and dashes"),
        ("[providers.auto]\ndialect = 'openai'", "and not auto (file {file})"),
        (
            "[providers.openai]\nmodel = 7",
            "model must be a text of at most 256 characters, not '7'",
        ),
        (
            "[providers.openai]\napi_base = 'h'",
            "api_base: h is not an http or https URL (file {file}, ",
        ),
        (
            "[providers.openai]\napi_key_command = 'pass it'",
            (
                "api_key_command must be a list of texts of at least 1 and of at most 64 items, not "
                "'pass it' (file {file}, [providers.openai])"
            ),
        ),
        ("[providers.openai]\napi_key_command = []", "must be a list of texts of at least 1"),
        ("[providers.openai]\napi_key_command = ['a', 1]", "must be a list of texts"),
        ("[models.gpt]", '[models."gpt"] must name a model as provider/model'),
        ('[models."openai/"]', "must name a model as provider/model, of at most 256 characters"),
        (
            '[models."opnai/gpt"]',
            '[models."opnai/gpt"] names the unknown provider opnai; the nearest is openai',
        ),
        (
            '[models."openai/gpt"]\ncontext_window = 0',
            "must be a whole number at least 1 and at most",
        ),
        (
            '[models."openai/gpt"]\ninput_price = -1',
            "input_price must be a number at least 0 and at",
        ),
        ('[models."openai/gpt"]\ninput_price = nan', "input_price must be a number at least 0"),
        (
            '[models."openai/gpt"]\ninput_price = 1',
            '[models."openai/gpt"] needs input_price and output_price together (file {file})',
        ),
        ('[models."openai/gpt"]\ncache_read_price = 1', "needs input_price and output_price"),
        (
            '[models."openai/gpt"]\nattachments = ["image"]',
            (
                "attachments must be media types like image/png or image/*, not 'image' (file {file}, "
                '[models."openai/gpt"])'
            ),
        ),
        ('[models."openai/gpt"]\nattachments = ["*/png"]', "attachments must be media types"),
        (
            "[aliases]\nbig = 1",
            "big must be a text of at most 256 characters, not '1' (file {file}, ",
        ),
        ("[aliases]\nbig = 'gpt'", "alias big in [aliases] must name a model as provider/model"),
        (
            "[aliases]\nbig = 'other'\nother = 'openai/gpt'",
            "alias big in [aliases] must name a model",
        ),
        (
            "[aliases]\nbig = 'opnai/gpt'",
            "alias big in [aliases] names the unknown provider opnai",
        ),
        (
            "[aliases]\n'a/b' = 'openai/gpt'",
            "an alias is a name of at most 256 characters without a",
        ),
        ("[aliases]\nopenai = 'openai/gpt'", "and not that of a provider, not 'openai'"),
    ],
)
def test_an_invalid_table_is_refused_with_its_file_and_reason(
    home: Path, toml: str, message: str
) -> None:
    file = write(home / "c.toml", toml)
    message_shown = refusal(file)
    assert message.replace("{file}", str(file)) in message_shown
    assert str(file) in message_shown


@pytest.mark.parametrize(
    ("name", "most", "row"),
    [
        ("providers", models_file.PROVIDERS_MAX, "[providers.p{}]\ndialect = 'openai'\n"),
        ("models", models_file.MODELS_MAX, '[models."openai/m{}"]\n'),
        ("aliases", models_file.ALIASES_MAX, 'aliases.a{} = "openai/m"\n'),
    ],
)
def test_the_tables_have_a_maximum_size(home: Path, name: str, most: int, row: str) -> None:
    file = write(home / "c.toml", "".join(row.format(number) for number in range(most)))
    assert len(getattr(tables(file), name)) == most
    write(file, "".join(row.format(number) for number in range(most + 1)))
    assert f"[{name}] must hold at most {most} (file {file})" in refusal(file)


# --- keys ----------------------------------------------------------------------------------------


def with_key(home: Path, mode: int) -> Path:
    return write(home / "c.toml", f"[providers.openai]\napi_key = '{KEY}'", mode)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_key_is_accepted_in_a_private_file(home: Path, mode: int) -> None:
    assert resolve({}, {}, with_key(home, mode)).settings.providers["openai"].api_key is not None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o602])
def test_a_key_in_a_file_open_to_others_is_refused_with_advice(home: Path, mode: int) -> None:
    file = with_key(home, mode)
    assert refusal(file) == (
        f"[providers.openai] holds a key, and {file} is open to other users (mode {mode:04o}): "
        f"chmod 600 {file}"
    )


def test_a_file_open_to_others_may_contain_a_key_command(home: Path) -> None:
    command = "[providers.openai]\napi_key_command = ['pass']"
    resolve({}, {}, write(home / "c.toml", command, 0o644))


def test_a_key_in_a_file_of_another_user_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = with_key(home, 0o600)
    file_owner = file.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: file_owner + 1)
    # A file owned by root is trusted, since root can do anything anyway.
    real = config_file._exposure
    monkeypatch.setattr(
        config_file, "_exposure", lambda path, status: real(path, _owned(status, 4711))
    )
    assert "belongs to another user: make it your own" in refusal(file)
    monkeypatch.setattr(
        config_file, "_exposure", lambda path, status: real(path, _owned(status, 0))
    )
    resolve({}, {}, file)


def _owned(status: os.stat_result, user: int) -> os.stat_result:
    return os.stat_result((*status[:4], user, *status[5:]))


def test_a_key_in_a_pipe_is_refused(home: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, f"[providers.openai]\napi_key = '{KEY}'".encode())
    os.close(writer)
    try:
        assert "is not a regular file: keep the key in one" in refusal(Path(f"/dev/fd/{reader}"))
    finally:
        os.close(reader)


@pytest.mark.parametrize(
    "value", ["['hush']", "'  '", "{ hush = 'hush' }", '"""hush\\nhush"""', f"'{'hush' * 4000}'"]
)
def test_no_error_repeats_a_possible_key(home: Path, value: str) -> None:
    file = write(home / "c.toml", f"[providers.openai]\napi_key = {value}", 0o644)
    assert "hush" not in refusal(file)


def test_a_client_finds_the_socket_despite_invalid_tables(home: Path) -> None:
    toml = f"socket = '/s'\n[providers.nonsense]\napi_key = '{KEY}'\n[aliases]\na = 1"
    file = write(home / "c.toml", toml, 0o644)
    assert resolve_socket({"NOUSD_CONFIG": str(file)}) == Path("/s")
