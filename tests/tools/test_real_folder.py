"""A directory is opened by its real path, and refused if part of the path is now a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nousd.errors import ToolError
from nousd.tools.fs.open_nofollow import open_real, require_real


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "a" / "b" / "c"
    folder.mkdir(parents=True)
    return folder


def inode_of(path: Path) -> int:
    folder = open_real(path)
    try:
        return os.fstat(folder).st_ino
    finally:
        os.close(folder)


def test_a_real_path_opens_its_directory(deep: Path) -> None:
    for path in (deep, deep.parent, Path("/")):
        assert inode_of(path) == path.stat().st_ino


@pytest.mark.parametrize("level", [0, 1, 2], ids=["the folder", "above it", "further up"])
def test_a_link_anywhere_in_the_path_is_not_followed(deep: Path, level: int) -> None:
    place = [deep, *deep.parents][level]
    place.rename(place.with_name("was"))
    place.symlink_to(place.with_name("was"))
    assert deep.is_dir()
    with pytest.raises(ToolError, match=r"^workspace_changed: .* is not the folder that it was$"):
        open_real(deep)
    with pytest.raises(ToolError, match="workspace_changed"):
        require_real(deep)


def test_a_file_in_place_of_the_directory_is_refused(deep: Path) -> None:
    deep.rmdir()
    deep.write_text("")
    with pytest.raises(ToolError, match="workspace_changed"):
        open_real(deep)


def test_a_missing_directory_raises_only_when_it_is_opened(deep: Path) -> None:
    deep.rmdir()
    with pytest.raises(FileNotFoundError):
        open_real(deep)
    require_real(deep)


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_no_descriptor_stays_open(deep: Path) -> None:
    before = descriptors()
    inode_of(deep)
    require_real(deep)
    deep.rmdir()
    deep.symlink_to("/")
    with pytest.raises(ToolError):
        open_real(deep)
    assert descriptors() == before
