"""Instruction files: the search, its order and limits, and the files that are never read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from nousd.daemon.workspace import instructions
from nousd.daemon.workspace.instructions import Places, no_instructions, read_instructions, reader
from nousd.machine.context.prompt_sections import SourceText, system_prompt, system_text
from nousd.wire.codec.canonical_json import digest
from nousd.wire.limits import INSTRUCTIONS_BYTES_MAX, INSTRUCTIONS_FILE_BYTES_MAX


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "repo" / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "repo" / ".git").mkdir()
    (tmp_path / "etc").mkdir()
    return tmp_path


def read(
    workdir: Path, *, user: Path | None = None, project: bool = True, hidden: tuple[Path, ...] = ()
) -> tuple[SourceText, ...]:
    return read_instructions(Places(workdir, user, project, hidden))


def project_sources(workdir: Path, hidden: tuple[Path, ...] = ()) -> list[tuple[str, str]]:
    """Return reason and text of each source of the project."""
    found = read(workdir, hidden=hidden)
    return [
        (source.reason if isinstance(source.reason, str) else "", text)
        for source, text in found
        if source.kind == "project_instructions"
    ]


# --- files that are found --------------------------------------------------------------------


def test_files_are_read_from_the_repository_root_down_to_the_workspace(home: Path) -> None:
    repo = home / "repo"
    (home / "AGENTS.md").write_text("of nobody's concern")
    (repo / "AGENTS.md").write_text("of the root")
    (repo / "sub" / "deep" / "AGENTS.md").write_text("of the workdir")
    assert project_sources(repo / "sub" / "deep") == [("", "of the root"), ("", "of the workdir")]
    assert project_sources(repo / "sub") == [("", "of the root")]


def test_a_worktree_whose_git_folder_is_a_file_is_a_repository(home: Path) -> None:
    (home / "tree" / "sub").mkdir(parents=True)
    (home / "tree" / ".git").write_text("gitdir: elsewhere")
    (home / "tree" / "AGENTS.md").write_text("of the tree")
    assert project_sources(home / "tree" / "sub") == [("", "of the tree")]


def test_without_a_repository_only_the_workspace_itself_is_searched(home: Path) -> None:
    (home / "plain" / "sub").mkdir(parents=True)
    (home / "plain" / "AGENTS.md").write_text("above")
    assert project_sources(home / "plain" / "sub") == [("not_found", "")]
    assert project_sources(home / "plain") == [("", "above")]


def test_the_users_instructions_come_before_the_projects(home: Path) -> None:
    user = home / "etc" / "AGENTS.md"
    user.write_text("mine\n")
    (home / "repo" / "AGENTS.md").write_text("ours")
    mine, ours = read(home / "repo", user=user)
    assert (mine.text, ours.text) == ("mine\n", "ours")
    assert (mine.source.path, mine.source.enabled) == (str(user), True)
    assert (mine.source.hash, mine.source.bytes) == (digest(b"mine\n"), 5)
    path = home / "repo" / "AGENTS.md"
    assert system_text([system_prompt("Be kind."), mine, ours]) == (
        f"Be kind.\n\n# The user's own instructions ({user})\n\nmine\n\n"
        f"# Instructions of the project ({path})\n\nours"
    )


async def test_disabled_sources_are_reported_as_off(home: Path) -> None:
    (home / "repo" / "AGENTS.md").write_text("ours")
    found = read(home / "repo", user=None, project=False)
    assert list(await no_instructions()) == list(found)
    assert [(source.kind, source.enabled, source.reason) for source, _ in found] == [
        ("user_instructions", False, "off"),
        ("project_instructions", False, "off"),
    ]
    assert system_text(found) == ""
    assert system_prompt("").source.reason == "off"
    assert not system_prompt("").source.enabled


def test_missing_files_are_reported_as_not_found(home: Path) -> None:
    found = read(home / "repo", user=home / "nowhere" / "AGENTS.md")
    assert [(source.enabled, source.reason) for source, _ in found] == [(True, "not_found")] * 2


def test_an_empty_file_is_reported_as_empty(home: Path) -> None:
    (home / "repo" / "AGENTS.md").write_text(" \n")
    assert project_sources(home / "repo") == [("empty", "")]


# --- files that are not read -----------------------------------------------------------------


def test_a_link_within_the_repository_is_followed_and_one_out_of_it_is_not(home: Path) -> None:
    repo = home / "repo"
    (home / "secret").write_text("the key")
    (repo / "AGENTS.md").symlink_to("../secret")
    assert project_sources(repo) == [("outside", "")]
    (repo / "AGENTS.md").unlink()
    (repo / "AGENTS.md").symlink_to(home / "secret")
    assert project_sources(repo) == [("outside", "")]
    (repo / "CLAUDE.md").write_text("the same for all")
    (repo / "AGENTS.md").unlink()
    (repo / "AGENTS.md").symlink_to("CLAUDE.md")
    assert project_sources(repo) == [("", "the same for all")]


def test_the_daemons_own_files_inside_the_repository_are_not_read(home: Path) -> None:
    state = home / "repo" / "state"
    state.mkdir()
    (state / "log").write_text("of another session")
    (home / "repo" / "AGENTS.md").symlink_to("state/log")
    assert project_sources(home / "repo", hidden=(state,)) == [("outside", "")]


def test_a_link_out_of_the_users_folder_is_not_followed(home: Path) -> None:
    (home / "secret").write_text("the key")
    user = home / "etc" / "AGENTS.md"
    user.symlink_to("../secret")
    (mine, _) = read(home / "repo", user=user)
    assert (mine.source.reason, mine.text) == ("outside", "")


def test_only_a_regular_file_is_read_and_nothing_blocks(home: Path) -> None:
    path = home / "repo" / "AGENTS.md"
    os.mkfifo(path)
    assert project_sources(home / "repo") == [("not_a_file", "")]
    path.unlink()
    path.mkdir()
    assert project_sources(home / "repo") == [("not_a_file", "")]


def test_a_circular_link_is_unreadable(home: Path) -> None:
    (home / "repo" / "AGENTS.md").symlink_to("AGENTS.md")
    assert project_sources(home / "repo") == [("unreadable", "")]


# --- sizes and encodings -----------------------------------------------------------------------


def test_a_file_past_the_size_limit_is_truncated_and_reported_as_cut(home: Path) -> None:
    path = home / "repo" / "AGENTS.md"
    for size, reason in [(-1, ""), (0, ""), (1, "cut")]:
        path.write_text("x" * (INSTRUCTIONS_FILE_BYTES_MAX + size))
        kept = min(INSTRUCTIONS_FILE_BYTES_MAX, INSTRUCTIONS_FILE_BYTES_MAX + size)
        assert project_sources(home / "repo") == [(reason, "x" * kept)]


def test_truncation_does_not_split_a_character(home: Path) -> None:
    path = home / "repo" / "AGENTS.md"
    path.write_text("x" * (INSTRUCTIONS_FILE_BYTES_MAX - 1) + "é")
    assert project_sources(home / "repo") == [("cut", "x" * (INSTRUCTIONS_FILE_BYTES_MAX - 1))]


def test_the_total_size_is_bounded_and_the_deepest_files_take_precedence(home: Path) -> None:
    repo = home / "repo"
    user = home / "etc" / "AGENTS.md"
    user.write_text("u" * INSTRUCTIONS_FILE_BYTES_MAX)
    (repo / "AGENTS.md").write_text("root")
    (repo / "sub" / "AGENTS.md").write_text("s" * 100)
    (repo / "sub" / "deep" / "AGENTS.md").write_text("d" * (INSTRUCTIONS_FILE_BYTES_MAX - 10))
    found = read(repo / "sub" / "deep", user=user)
    assert [source.reason for source, _ in found[1:3]] == ["no_room", "cut"]
    assert [len(text) for _, text in found[1:]] == [0, 10, INSTRUCTIONS_FILE_BYTES_MAX - 10]
    assert sum(len(text) for _, text in found) == INSTRUCTIONS_BYTES_MAX


def test_a_byte_order_mark_is_removed(home: Path) -> None:
    (home / "repo" / "AGENTS.md").write_bytes(b"\xef\xbb\xbfhello")
    assert project_sources(home / "repo") == [("", "hello")]


def test_invalid_utf_8_is_repaired_and_reported(home: Path) -> None:
    path = home / "repo" / "AGENTS.md"
    path.write_bytes(b"caf\xe9")
    ((source, text),) = (found for found in read(home / "repo") if found.text)
    assert (source.reason, text) == ("not_utf8", "caf\ufffd")
    assert source.hash == digest("caf\ufffd".encode())
    for size in (INSTRUCTIONS_FILE_BYTES_MAX, INSTRUCTIONS_FILE_BYTES_MAX + 1):
        path.write_bytes(b"\xe9" * size)
        ((reason, text),) = project_sources(home / "repo")
        assert reason == "cut,not_utf8"
        assert len(text.encode()) <= INSTRUCTIONS_FILE_BYTES_MAX


# --- repeated readings --------------------------------------------------------------------------


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[Places]:
    """One item for each reading of the files; their disk counts as local, with precise timestamps."""
    counted: list[Places] = []

    def count(places: Places) -> Sequence[SourceText]:
        counted.append(places)
        return read_instructions(places)

    monkeypatch.setattr(instructions, "read_instructions", count)
    monkeypatch.setattr(instructions, "is_local", lambda _: True)
    monkeypatch.setattr(instructions, "_UNSETTLED_NS", 0)
    return counted


async def test_unchanged_files_are_read_once(readings: list[Places], tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("one")
    read = reader(Places(tmp_path, tmp_path / "mine.md", project=True))
    results = [await read() for _ in range(3)]
    assert results[0] == results[1] == results[2]
    assert len(readings) == 1


@pytest.mark.parametrize("change", ["written", "replaced", "gone", "new above", "the user's"])
async def test_changed_files_are_read_again(
    change: str, readings: list[Places], tmp_path: Path
) -> None:
    workdir = tmp_path / "repository" / "work"
    workdir.mkdir(parents=True)
    (workdir / "AGENTS.md").write_text("one")
    read = reader(Places(workdir, tmp_path / "mine.md", project=True))
    before = await read()
    match change:
        case "written":
            (workdir / "AGENTS.md").write_text("more than one")
        case "replaced":
            (workdir / "other").write_text("two")
            (workdir / "other").replace(workdir / "AGENTS.md")
        case "gone":
            (workdir / "AGENTS.md").unlink()
        case "new above":
            (workdir.parent / ".git").mkdir()
            (workdir.parent / "AGENTS.md").write_text("above")
        case _:
            (tmp_path / "mine.md").write_text("mine")
    assert await read() != before
    assert len(readings) == 2


@pytest.mark.parametrize("doubt", ["a link", "a far disk", "a moment ago"])
async def test_files_with_unreliable_timestamps_are_read_each_time(
    doubt: str, readings: list[Places], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "AGENTS.md"
    if doubt == "a link":
        (tmp_path / "real.md").write_text("one")
        path.symlink_to("real.md")
    else:
        path.write_text("one")
    if doubt == "a far disk":
        monkeypatch.setattr(instructions, "is_local", lambda _: False)
    if doubt == "a moment ago":
        monkeypatch.setattr(instructions, "_UNSETTLED_NS", 10**15)
    read = reader(Places(tmp_path, None, project=True))
    assert await read() == await read()
    assert len(readings) == 2
