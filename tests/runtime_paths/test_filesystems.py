"""Which filesystems count as local."""

from __future__ import annotations

from pathlib import Path

import pytest

from nousd.runtime_paths.filesystems import is_local

MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /net rw - nfs4 server:/export rw
31 30 0:41 / /net/here rw master:2 propagate_from:3 - tmpfs tmpfs rw
32 22 0:42 / /with\040blank rw - fuse.sshfs me@there: rw
33 22 0:43 / /twice rw - ext4 /dev/sdb1 rw
34 33 0:44 / /twice rw - cifs //server/share rw
nonsense
""".strip()


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    return path


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("/", True),
        ("/home/me", True),
        ("/network", True),
        ("/net", False),
        ("/net/deep/down", False),
        ("/net/here/x", True),
        ("/with blank/x", False),
        ("/twice/x", False),
    ],
)
def test_the_nearest_mount_above_a_path_decides_if_it_is_local(
    path: str, local: bool, mounts: Path
) -> None:
    assert is_local(Path(path), mounts) is local


def test_without_mount_information_nothing_is_local(tmp_path: Path) -> None:
    assert not is_local(tmp_path, tmp_path / "missing")
    (tmp_path / "empty").write_text("")
    assert not is_local(tmp_path, tmp_path / "empty")


def test_a_symbolic_link_is_resolved_first(mounts: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/net/deep")
    assert not is_local(link, mounts)
