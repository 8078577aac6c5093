from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from nousd.errors import ConfigError
from nousd.runtime_paths.locks import holder_of, lock_socket, lock_state_folder, state_lock_file

HOLD = """
import sys
from pathlib import Path
from nousd.runtime_paths.locks import lock_state_folder
with lock_state_folder(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_holder_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "nous.sock"
    with (
        lock_socket(path),
        pytest.raises(
            ConfigError,
            match=rf"^another daemon \(pid {os.getpid()}\) already uses the socket {path}$",
        ),
        lock_socket(path),
    ):
        pass


def test_the_error_of_a_locked_state_folder_names_it(tmp_path: Path) -> None:
    with (
        lock_state_folder(tmp_path),
        pytest.raises(ConfigError, match=f"already uses the state folder {tmp_path}$"),
        lock_state_folder(tmp_path),
    ):
        pass


def test_two_sockets_in_one_folder_do_not_exclude_each_other(tmp_path: Path) -> None:
    with lock_socket(tmp_path / "a.sock"), lock_socket(tmp_path / "b.sock"):
        pass


def test_a_lock_is_released_after_its_block_and_its_file_stays(tmp_path: Path) -> None:
    for _ in range(2):
        with lock_state_folder(tmp_path):
            assert (tmp_path / "nousd.lock").read_text() == f"{os.getpid()}\n"
        assert (tmp_path / "nousd.lock").read_text() == ""


def test_a_refused_attempt_does_not_change_the_lock_or_its_pid(tmp_path: Path) -> None:
    with lock_state_folder(tmp_path):
        for _ in range(2):
            with pytest.raises(ConfigError), lock_state_folder(tmp_path):
                pass
        assert (tmp_path / "nousd.lock").read_text() == f"{os.getpid()}\n"


def test_a_lock_is_released_when_its_process_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(ConfigError, match=rf"pid {holder.pid}\)"),
            lock_state_folder(tmp_path),
        ):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
    with lock_state_folder(tmp_path):
        assert (tmp_path / "nousd.lock").read_text() == f"{os.getpid()}\n"


def test_a_holder_that_did_not_write_its_pid_still_holds_the_lock(tmp_path: Path) -> None:
    with lock_state_folder(tmp_path):
        (tmp_path / "nousd.lock").write_text("")
        with (
            pytest.raises(ConfigError, match=r"^another daemon already uses"),
            lock_state_folder(tmp_path),
        ):
            pass


def test_a_child_process_does_not_inherit_the_lock(tmp_path: Path) -> None:
    with lock_state_folder(tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with lock_state_folder(tmp_path):
            assert child.poll() is None
    finally:
        child.communicate(b"\n")


def test_the_lock_file_is_private_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with lock_state_folder(tmp_path):
            assert (tmp_path / "nousd.lock").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def symbolic_link(lock_file: Path, victim: Path) -> None:
    lock_file.symlink_to(victim)


def hard_link(lock_file: Path, victim: Path) -> None:
    lock_file.hardlink_to(victim)


@pytest.mark.parametrize("plant", [symbolic_link, hard_link])
def test_a_linked_lock_file_is_refused_and_its_target_unchanged(
    tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    plant(tmp_path / "nousd.lock", victim)
    with pytest.raises(ConfigError, match=r"^the lock file"), lock_state_folder(tmp_path):
        pass
    assert victim.read_text() == "kept"


@pytest.mark.usefixtures("as_root")
def test_a_lock_file_of_another_user_is_refused(tmp_path: Path) -> None:
    lock_file = tmp_path / "nousd.lock"
    lock_file.touch()
    os.chown(lock_file, 65_534, -1)
    with (
        pytest.raises(ConfigError, match="not a plain file of our own"),
        lock_state_folder(tmp_path),
    ):
        pass


def test_a_folder_instead_of_the_lock_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nousd.lock").mkdir()
    with pytest.raises(ConfigError, match="cannot be opened"), lock_state_folder(tmp_path):
        pass


@pytest.mark.parametrize(
    "take",
    [lambda folder: lock_socket(folder / "nous.sock"), lock_state_folder],
    ids=["socket", "state_folder"],
)
def test_a_lock_in_a_missing_folder_is_an_error(
    tmp_path: Path, take: Callable[[Path], AbstractContextManager[None]]
) -> None:
    folder = tmp_path / "missing"
    with pytest.raises(ConfigError, match=f"{folder}.*No such file"), take(folder):
        pass


# --- the holder of a lock ----------------------------------------------------------------------


def test_the_holder_of_a_lock_can_be_queried_without_changes(tmp_path: Path) -> None:
    lock_file = state_lock_file(tmp_path)
    assert holder_of(lock_file) is None
    assert not lock_file.exists()
    with lock_state_folder(tmp_path):
        assert holder_of(lock_file) == f"pid {os.getpid()}"
        lock_file.write_text("")
        assert holder_of(lock_file) == "pid unknown"
    assert holder_of(lock_file) is None


def test_the_holder_of_a_linked_lock_file_is_not_queried(tmp_path: Path) -> None:
    state_lock_file(tmp_path).symlink_to("elsewhere")
    with pytest.raises(ConfigError, match="cannot be opened"):
        holder_of(state_lock_file(tmp_path))
