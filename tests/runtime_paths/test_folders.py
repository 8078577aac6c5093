from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from nousd.errors import ConfigError
from nousd.runtime_paths.folders import prepare_chosen_folder, prepare_own_folder

SOMEBODY_ELSE = 65_534

Prepare = Callable[[Path, str], None]

either_kind = pytest.mark.parametrize("prepare", [prepare_own_folder, prepare_chosen_folder])


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def folder_with_mode(path: Path, bits: int) -> Path:
    path.mkdir()
    path.chmod(bits)
    return path


@either_kind
def test_a_missing_folder_and_its_parents_are_private_under_any_umask(
    prepare: Prepare, tmp_path: Path, any_umask: int
) -> None:
    folder = tmp_path / "a" / "b" / "state"
    prepare(folder, "state folder")
    assert [mode(path) for path in (folder, folder.parent, folder.parent.parent)] == [0o700] * 3


@either_kind
def test_preparing_a_folder_again_changes_nothing(prepare: Prepare, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    prepare(folder, "state folder")
    (folder / "log").write_text("kept")
    prepare(folder, "state folder")
    assert (folder / "log").read_text() == "kept"
    assert mode(folder) == 0o700


@pytest.mark.parametrize("bits", [0o755, 0o777, 0o1777, 0o500])
def test_our_own_folder_is_made_private(tmp_path: Path, bits: int) -> None:
    folder = folder_with_mode(tmp_path / "nousd", bits)
    prepare_own_folder(folder, "runtime folder")
    assert mode(folder) & 0o777 == 0o700


def test_our_own_folder_may_not_be_a_symbolic_link(tmp_path: Path) -> None:
    target = folder_with_mode(tmp_path / "target", 0o755)
    link = tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(ConfigError, match=f"^the state folder {link} is a symbolic link"):
        prepare_own_folder(link, "state folder")
    assert mode(target) == 0o755


@either_kind
def test_a_dangling_link_is_refused_and_not_followed(prepare: Prepare, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=str(link)):
        prepare(link, "state folder")
    assert not (tmp_path / "nowhere").exists()


@either_kind
def test_a_file_instead_of_the_folder_is_refused(prepare: Prepare, tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_text("kept")
    with pytest.raises(ConfigError, match=f"^the state folder {file} is not a directory$"):
        prepare(file, "state folder")
    assert file.read_text() == "kept"


@either_kind
def test_a_file_as_a_parent_of_the_folder_is_an_error(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "state"
    with pytest.raises(ConfigError, match=f"{folder} cannot be created: Not a directory"):
        prepare(folder, "state folder")


@either_kind
@pytest.mark.usefixtures("as_root")
def test_a_folder_of_another_user_is_refused_and_keeps_its_mode(
    prepare: Prepare, tmp_path: Path
) -> None:
    folder = folder_with_mode(tmp_path / "state", 0o755)
    os.chown(folder, SOMEBODY_ELSE, -1)
    with pytest.raises(ConfigError, match=rf"another user \(uid {SOMEBODY_ELSE}\)"):
        prepare(folder, "state folder")
    assert mode(folder) == 0o755


@pytest.mark.usefixtures("as_root")
def test_a_chosen_folder_behind_a_link_of_another_user_is_refused(tmp_path: Path) -> None:
    target = folder_with_mode(tmp_path / "target", 0o700)
    link = tmp_path / "link"
    link.symlink_to(target)
    os.chown(link, SOMEBODY_ELSE, -1, follow_symlinks=False)
    with pytest.raises(ConfigError, match="another user"):
        prepare_chosen_folder(link, "socket folder")


def test_a_chosen_folder_behind_our_own_link_is_accepted(tmp_path: Path) -> None:
    target = folder_with_mode(tmp_path / "target", 0o755)
    link = tmp_path / "link"
    link.symlink_to(target)
    prepare_chosen_folder(link, "socket folder")
    assert mode(target) == 0o755


@pytest.mark.parametrize("bits", [0o700, 0o755, 0o711])
def test_a_chosen_folder_that_only_we_can_write_to_is_unchanged(tmp_path: Path, bits: int) -> None:
    folder = folder_with_mode(tmp_path / "chosen", bits)
    prepare_chosen_folder(folder, "state folder")
    assert mode(folder) == bits


@pytest.mark.parametrize("bits", [0o777, 0o770, 0o702])
@pytest.mark.parametrize("sticky_ok", [True, False])
def test_a_chosen_folder_that_others_can_write_to_is_refused_and_unchanged(
    tmp_path: Path, bits: int, sticky_ok: bool
) -> None:
    folder = folder_with_mode(tmp_path / "chosen", bits)
    with pytest.raises(ConfigError, match=rf"other users \(mode {bits:04o}\)"):
        prepare_chosen_folder(folder, "socket folder", sticky_ok=sticky_ok)
    assert mode(folder) == bits


@pytest.mark.parametrize("bits", [0o777, 0o770, 0o702])
def test_a_chosen_folder_that_we_used_and_that_was_opened_since_is_closed_and_that_is_said(
    tmp_path: Path, bits: int, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_with_mode(tmp_path / "chosen", bits)
    lock_file = folder / "nousd.lock"
    lock_file.touch()
    prepare_chosen_folder(folder, "state folder", lock_file=lock_file)
    assert mode(folder) == bits & ~0o022
    assert caplog.messages == [f"{folder} had the mode {bits:04o}, and has {bits & ~0o022:04o} now"]
    prepare_chosen_folder(folder, "state folder", lock_file=lock_file)
    assert len(caplog.messages) == 1


def test_a_folder_for_everybody_is_not_closed_to_them_although_we_used_it(tmp_path: Path) -> None:
    folder = folder_with_mode(tmp_path / "like-tmp", 0o1777)
    lock_file = folder / "nousd.lock"
    lock_file.touch()
    with pytest.raises(ConfigError, match="mode 1777"):
        prepare_chosen_folder(folder, "state folder", lock_file=lock_file)
    assert mode(folder) == 0o1777


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("foreign", ["folder", "lock"])
def test_an_open_folder_that_another_user_has_a_part_in_is_refused_and_stays(
    foreign: str, tmp_path: Path
) -> None:
    folder = folder_with_mode(tmp_path / "chosen", 0o777)
    lock_file = folder / "nousd.lock"
    lock_file.touch()
    os.chown(folder if foreign == "folder" else lock_file, SOMEBODY_ELSE, -1)
    with pytest.raises(ConfigError):
        prepare_chosen_folder(folder, "state folder", lock_file=lock_file)
    assert mode(folder) == 0o777


def test_our_own_folder_that_was_open_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_with_mode(tmp_path / "nousd", 0o755)
    prepare_own_folder(folder, "state folder")
    assert caplog.messages == [f"{folder} had the mode 0755, and has 0700 now"]


def test_a_sticky_folder_is_accepted_only_for_sockets(tmp_path: Path) -> None:
    folder = folder_with_mode(tmp_path / "like-tmp", 0o1777)
    prepare_chosen_folder(folder, "socket folder", sticky_ok=True)
    assert mode(folder) == 0o1777
    with pytest.raises(ConfigError, match="mode 1777"):
        prepare_chosen_folder(folder, "state folder")


@either_kind
def test_a_folder_that_cannot_be_created_is_an_error_with_the_reason(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: Path, mode: int, exist_ok: bool) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", read_only)
    folder = tmp_path / "state"
    with pytest.raises(ConfigError, match=f"{folder} cannot be created: Read-only file system"):
        prepare(folder, "state folder")


@either_kind
def test_a_folder_that_cannot_be_written_to_is_refused(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, wanted: False)
    folder = folder_with_mode(tmp_path / "state", 0o700)
    with pytest.raises(ConfigError, match=f"{folder} cannot be written to"):
        prepare(folder, "state folder")


def test_our_own_folder_that_cannot_be_made_private_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(descriptor: int, mode: int) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "fchmod", read_only)
    folder = folder_with_mode(tmp_path / "state", 0o755)
    with pytest.raises(ConfigError, match=f"{folder} cannot be made private: Read-only"):
        prepare_own_folder(folder, "state folder")
