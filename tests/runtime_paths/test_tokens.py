from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nousd.errors import ConfigError
from nousd.runtime_paths import tokens
from nousd.runtime_paths.tokens import (
    OpenToken,
    TokenFile,
    existing_http_token,
    http_token,
    rotate_http_token,
)

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


# --- rotation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_a_rotation_writes_a_new_private_token(file: Path, mask: int) -> None:
    write_token(file)
    before = os.umask(mask)
    try:
        rotate_http_token(file)
    finally:
        os.umask(before)
    assert existing_http_token(file) not in (None, TOKEN)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_rotation_creates_a_missing_token_and_mends_an_open_or_invalid_one(file: Path) -> None:
    rotate_http_token(file)
    for text, mode in ((TOKEN, 0o644), ("short", 0o600)):
        write_token(file, text, mode)
        rotate_http_token(file)
        assert existing_http_token(file) not in (None, text)


def test_concurrent_rotations_leave_one_whole_token(file: Path) -> None:
    write_token(file)
    seen = set()
    with ThreadPoolExecutor(16) as rotations:
        for done in [rotations.submit(rotate_http_token, file) for _ in range(64)]:
            done.result()
            seen.add(existing_http_token(file))
    assert not seen & {None, TOKEN}
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("name", "code"),
    [("open", errno.EACCES), ("open", errno.EROFS), ("fsync", errno.ENOSPC), ("fsync", errno.EIO)],
)
def test_a_failed_rotation_leaves_the_old_token_and_says_so(
    file: Path, name: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_token(file)

    def fail(*_arguments: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, name, fail)
        with pytest.raises(ConfigError) as raised:
            rotate_http_token(file)
    assert str(raised.value) == f"http: {file}: {os.strerror(code)}; the token was not changed"
    assert existing_http_token(file) == TOKEN
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_rotation_that_may_not_be_durable_says_so(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_token(file)
    sync = os.fsync

    def fail(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigError, match="a power cut may bring the old one back"):
        rotate_http_token(file)
    assert existing_http_token(file) != TOKEN


def test_a_rotation_refuses_what_is_not_a_file_of_ours(file: Path, tmp_path: Path) -> None:
    other = write_token(tmp_path / "other")
    file.symlink_to(other)
    with pytest.raises(ConfigError, match="is not a file of yours; the token was not changed"):
        rotate_http_token(file)
    assert file.is_symlink()
    assert other.read_text() == TOKEN
    file.unlink()
    file.mkdir()
    with pytest.raises(ConfigError, match="is not a file of yours; the token was not changed"):
        rotate_http_token(file)


# --- the token of each moment ------------------------------------------------------------------


def test_a_new_token_is_noticed_and_told_as_a_secret(file: Path) -> None:
    secrets: list[str] = []
    write_token(file)
    current = TokenFile(file, secrets.append)
    assert [current.current() for _ in range(3)] == [TOKEN] * 3
    rotate_http_token(file)
    new = existing_http_token(file)
    assert current.current() == new
    assert secrets == [TOKEN, new]


def test_a_token_file_is_read_again_only_after_a_change(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = TokenFile(write_token(file), lambda _token: None)
    assert current.current() == TOKEN
    with monkeypatch.context() as patched:
        patched.setattr(tokens, "existing_http_token", None)
        assert current.current() == TOKEN
    write_token(file, "a-token-of-the-user-written-in-place")
    assert current.current() == "a-token-of-the-user-written-in-place"


def test_a_missing_or_open_token_admits_nobody_until_it_is_mended(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    current = TokenFile(write_token(file), lambda _token: None)
    assert current.current() == TOKEN
    file.unlink()
    assert [current.current(), current.current()] == [None, None]
    write_token(file, mode=0o644)
    assert [current.current(), current.current()] == [None, None]
    file.chmod(0o600)
    assert current.current() == TOKEN
    missing, open_to_others = caplog.messages
    assert "is missing: no HTTP client is admitted; nousd http rotate-token" in missing
    assert "others may read" in open_to_others
