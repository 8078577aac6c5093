from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

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
def test_a_file_of_another_user_is_left_as_it_is(tmp_path: Path) -> None:
    file = file_with_mode(tmp_path / "file", 0o666)
    os.chown(file, SOMEBODY_ELSE, -1)
    mend_files([file])
    assert mode(file) == 0o666
