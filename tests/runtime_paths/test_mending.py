from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from nousd.errors import ConfigError
from nousd.runtime_paths.locations import state_files
from nousd.runtime_paths.mending import mend_files

SOMEBODY_ELSE = 65_534


def file_with_mode(path: Path, mode: int) -> Path:
    path.write_text("kept")
    path.chmod(mode)
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_our_files_become_private_and_each_that_was_not_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_, private = file_with_mode(tmp_path / "a", 0o666), file_with_mode(tmp_path / "b", 0o600)
    mend_files([open_, private, tmp_path / "missing"])
    assert (mode(open_), mode(private)) == (0o600, 0o600)
    assert open_.read_text() == "kept"
    assert caplog.messages == [f"{open_} had the mode 0666, and has 0600 now"]


def test_what_is_no_plain_file_is_left_as_it_is_and_nobody_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target, link = file_with_mode(tmp_path / "target", 0o644), tmp_path / "link"
    link.symlink_to(target)
    folder, pipe = tmp_path / "folder", tmp_path / "pipe"
    folder.mkdir(mode=0o755)
    os.mkfifo(pipe, 0o644)
    mend_files([link, folder, pipe])
    assert [mode(path) for path in (target, folder, pipe)] == [0o644, 0o755, 0o644]
    assert caplog.messages == []


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("name", ["db", "db-wal", "db-shm", "db-journal", "reserve", "lock"])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_of_another_user_is_refused_and_left_as_it_is(
    tmp_path: Path, name: str, is_link: bool
) -> None:
    file = tmp_path / f"nousd.{name}"
    target = file_with_mode(tmp_path / "target", 0o666)
    if is_link:
        file.symlink_to(target)
    else:
        target.rename(file)
    os.chown(file, SOMEBODY_ELSE, -1, follow_symlinks=False)
    with pytest.raises(
        ConfigError, match=rf"{name} belongs to another user \(uid {SOMEBODY_ELSE}\)"
    ):
        mend_files(state_files(tmp_path))
    assert mode(target if is_link else file) == 0o666
