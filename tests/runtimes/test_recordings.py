"""What real programs once said is played through the adapters: the log must be as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtimes.real_programs import PROGRAMS
from tests.runtimes.recordings import BYTES_MAX, FOLDER, SCENES, path_of, play

RECORDINGS = sorted(FOLDER.glob("*/*.ndjson"))


def test_there_is_a_recording_of_each_scene_with_each_program() -> None:
    wanted = {path_of(program, scene) for program in PROGRAMS.values() for scene in SCENES}
    assert set(RECORDINGS) == wanted


def test_recordings_are_short_and_name_nothing_of_a_machine() -> None:
    for path in RECORDINGS:
        text = path.read_text(encoding="utf-8")
        assert len(text.encode()) <= BYTES_MAX
        assert [word for word in ("/tmp/", "/root/", "/home/", "127.0.0.1") if word in text] == []


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
@pytest.mark.slow(keep=1)
async def test_a_recording_gives_the_same_events(path: Path, tmp_path: Path) -> None:
    kind = PROGRAMS[path.parent.name.rpartition("-")[0]].kind
    then, now = await play(path, kind, tmp_path)
    assert now == then
