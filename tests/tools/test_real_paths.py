"""The real paths of several paths at once are those of each alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nousd.tools.fs.lexical_paths import folders_around, lies_in_one_of
from nousd.tools.fs.real_paths import real_paths


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "file").touch()
    (tmp_path / "to-folder").symlink_to("folder")
    (tmp_path / "to-file").symlink_to("to-folder/file")
    (tmp_path / "to-nothing").symlink_to("nothing/below")
    (tmp_path / "folder" / "up").symlink_to("..")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        *("", "folder", "folder/file", "folder/inner", "folder/nothing", "nothing/nothing"),
        *("to-folder", "to-folder/file", "to-folder/inner/..", "to-folder/../folder/file"),
        *("to-file", "to-file/below", "to-nothing", "to-nothing/further", "folder/up/to-file"),
        *("folder/up", "folder/up/..", "folder/up/folder/up", "folder/file/.."),
        *("loop", "loop/below", "loop/../folder", "one", "one/below", "two"),
    ],
)
def test_a_path_among_others_resolves_as_it_does_alone(tree: Path, name: str) -> None:
    path = tree / name
    beside = [path.parent / "other", path, path / "below", path, Path("/")]
    assert real_paths(beside) == [os.path.realpath(each) for each in beside]


def test_a_path_lies_in_the_folders_around_it() -> None:
    assert folders_around(["/a/b/c", Path("/a/d")]) == {"/", "/a", "/a/b", "/a/b/c", "/a/d"}
    assert lies_in_one_of("/a/b/c", {"/other", "/a/b"})
    assert lies_in_one_of(Path("/a/b"), {"/a/b"})
    assert lies_in_one_of("/a", {"/"})
    assert not lies_in_one_of("/a/bc", {"/a/b", "/a/bc/d"})
