from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nousd.errors import ConfigError
from nousd.runtime_paths.tokens import OpenToken, existing_http_token, http_token

SOMEBODY_ELSE = 65_534
TOKEN = "a-token-of-the-user"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "http-token"


def write_token(file: Path, text: str | bytes = TOKEN, mode: int = 0o600) -> Path:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    file.chmod(mode)
    return file


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_the_first_use_creates_a_private_token(file: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        token = http_token(file)
        assert http_token(file) == token
    finally:
        os.umask(before)
    assert len(token) >= 40
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_tokens_are_unique(tmp_path: Path) -> None:
    assert len({http_token(tmp_path / str(number)) for number in range(50)}) == 50


def test_concurrent_first_uses_get_the_same_token(file: Path) -> None:
    with ThreadPoolExecutor(16) as starts:
        assert len(set(starts.map(http_token, [file] * 64))) == 1
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_token_written_by_the_user_is_used(file: Path) -> None:
    assert http_token(write_token(file, f"  {TOKEN}\n")) == TOKEN


@pytest.mark.parametrize(
    "text", ["", "\n", "short", "two words that are long", "a-token-with-\x00-in-it", "ä" * 20]
)
def test_an_invalid_token_is_refused_without_showing_it(file: Path, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        http_token(write_token(file, text))
    assert str(raised.value) == f"http: {file} holds no token of 16 or more letters"
    assert file.read_bytes() == text.encode()


def test_a_token_that_is_too_long_is_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match="holds no token"):
        http_token(write_token(file, "x" * 5000))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o666, 0o610])
def test_a_token_that_others_may_read_or_write_is_replaced_and_that_is_said(
    file: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(OpenToken, match=f"mode {mode:04o}"):
        existing_http_token(write_token(file, mode=mode))
    token = http_token(file)
    assert token != TOKEN
    assert http_token(file) == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (said,) = caplog.messages
    assert str(file) in said
    assert f"{mode:04o}" in said
    assert "0600" in said
    assert TOKEN not in said
    assert token not in said


@pytest.mark.usefixtures("as_root")
def test_an_open_token_of_another_user_is_refused_and_stays(file: Path) -> None:
    os.chown(write_token(file, mode=0o666), SOMEBODY_ELSE, -1)
    with pytest.raises(ConfigError, match="is not a file of yours"):
        http_token(file)
    assert file.read_text() == TOKEN


def test_a_symbolic_link_is_refused(file: Path, tmp_path: Path) -> None:
    other = write_token(tmp_path / "other")
    for target in (other, tmp_path / "nowhere"):
        file.unlink(missing_ok=True)
        file.symlink_to(target)
        with pytest.raises(ConfigError, match=f"^http: {file}: "):
            http_token(file)
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_or_a_pipe_is_refused_without_waiting(file: Path) -> None:
    file.mkdir()
    with pytest.raises(ConfigError, match=f"^http: {file}"):
        http_token(file)
    file.rmdir()
    os.mkfifo(file, 0o600)
    with pytest.raises(ConfigError, match=f"^http: {file}"):
        http_token(file)


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        http_token(tmp_path / "nowhere" / "http-token")


@pytest.mark.usefixtures("as_root")
def test_a_token_of_another_user_is_refused(file: Path) -> None:
    os.chown(write_token(file), SOMEBODY_ELSE, -1)
    with pytest.raises(ConfigError, match="is not a file of yours"):
        http_token(file)
