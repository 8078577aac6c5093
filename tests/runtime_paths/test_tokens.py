from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nousd.errors import ConfigError
from nousd.runtime_paths.tokens import http_token

SOMEBODY_ELSE = 65_534
TOKEN = "a-token-of-the-user"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "http-token"


def written(file: Path, text: str | bytes = TOKEN, mode: int = 0o600) -> Path:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    file.chmod(mode)
    return file


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_the_first_need_makes_a_token_that_only_we_can_read(file: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        token = http_token(file)
        assert http_token(file) == token
    finally:
        os.umask(before)
    assert len(token) >= 40
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_no_two_tokens_are_alike(tmp_path: Path) -> None:
    assert len({http_token(tmp_path / str(number)) for number in range(50)}) == 50


def test_first_starts_at_the_same_time_agree(file: Path) -> None:
    with ThreadPoolExecutor(16) as starts:
        assert len(set(starts.map(http_token, [file] * 64))) == 1
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_token_of_the_users_own_is_taken(file: Path) -> None:
    assert http_token(written(file, f"  {TOKEN}\n")) == TOKEN


@pytest.mark.parametrize(
    "text", ["", "\n", "short", "two words that are long", "a-token-with-\x00-in-it", "ä" * 20]
)
def test_what_is_no_token_is_refused_without_being_told(file: Path, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        http_token(written(file, text))
    assert str(raised.value) == f"http: {file} holds no token of 16 or more letters"
    assert file.read_bytes() == text.encode()


def test_what_is_too_long_is_no_token(file: Path) -> None:
    with pytest.raises(ConfigError, match="holds no token"):
        http_token(written(file, "x" * 5000))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o666, 0o610])
def test_a_token_that_others_may_read_or_write_is_refused(file: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="set its mode to 0600"):
        http_token(written(file, mode=mode))


def test_a_link_is_refused_wherever_it_leads(file: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "other")
    for target in (other, tmp_path / "nowhere"):
        file.unlink(missing_ok=True)
        file.symlink_to(target)
        with pytest.raises(ConfigError, match=f"^http: {file}: "):
            http_token(file)
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_or_a_pipe_is_refused_and_nobody_waits(file: Path) -> None:
    file.mkdir()
    with pytest.raises(ConfigError, match=f"^http: {file}"):
        http_token(file)
    file.rmdir()
    os.mkfifo(file, 0o600)
    with pytest.raises(ConfigError, match=f"^http: {file}"):
        http_token(file)


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        http_token(tmp_path / "nowhere" / "http-token")


@pytest.mark.usefixtures("as_root")
def test_a_token_of_another_user_is_refused(file: Path) -> None:
    os.chown(written(file), SOMEBODY_ELSE, -1)
    with pytest.raises(ConfigError, match="is not a file of yours"):
        http_token(file)
