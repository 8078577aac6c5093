"""Where agent programs keep their files, and which variables they receive, by namespace."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from nousd.errors import AgentFailed
from nousd.runtimes.agents.guest import Guest
from nousd.runtimes.agents.obeyed import HiddenFiles
from nousd.runtimes.agents.spaces import (
    OwnVariables,
    Spaces,
    ephemeral_folder,
    folder_name,
    leftovers,
    remove_leftovers,
)
from nousd.wire.objects.runtimes import IsolationLevel

VARIABLES = OwnVariables(frozenset({"A_KEY"}), frozenset({"A_FOLDER"}), ("TMPDIR", "A_TMP"))
GIVEN = {"A_KEY": "secret", "A_FOLDER": "/of/the/user", "A_PROXY": "http://proxy"}
NAMESPACES = st.from_regex(r"default|user:[A-Za-z0-9_.@+-]{1,64}", fullmatch=True)

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")


NOTHING = HiddenFiles()


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@given(NAMESPACES, NAMESPACES)
def test_no_two_namespaces_have_the_same_folder(one: str, other: str) -> None:
    folders = [folder_name(each).casefold() for each in (one, other)]
    assert (folders[0] == folders[1]) == (one == other)


@given(NAMESPACES)
def test_the_folder_of_a_namespace_is_one_name(namespace: str) -> None:
    name = folder_name(namespace)
    assert Path(name).name == name
    assert name not in (".", "..")
    assert len(name.encode()) <= 255


@pytest.mark.parametrize(
    ("level", "namespace", "has"),
    [
        ("shared", "default", "shared"),
        ("shared", "user:a", "namespaced"),
        ("namespaced", "default", "namespaced"),
        ("namespaced", "user:a", "namespaced"),
        ("ephemeral", "default", "ephemeral"),
        ("ephemeral", "user:a", "ephemeral"),
    ],
)
async def test_what_a_program_is_given_follows_from_level_and_namespace(
    level: IsolationLevel, namespace: str, has: IsolationLevel, tmp_path: Path
) -> None:
    spaces = Spaces(tmp_path / "runtimes", "a", level, VARIABLES)
    assert spaces.level(namespace) == has
    async with spaces.open_home(namespace) as home:
        environment = spaces.environment(namespace, home, GIVEN)
    assert environment["A_PROXY"] == "http://proxy"
    assert ("A_KEY" in environment) == (namespace == "default")
    assert ("A_FOLDER" in environment) == (has == "shared")
    assert (home is None) == (has == "shared")
    if home is not None:
        assert environment["HOME"] == str(home)
        assert environment["TMPDIR"] == environment["A_TMP"] == str(home / "tmp")


def test_a_key_that_the_settings_name_is_every_namespaces(tmp_path: Path) -> None:
    spaces = Spaces(tmp_path, "a", own=VARIABLES.without_keys(["A_KEY", "A_FOLDER"]))
    environment = spaces.environment("user:a", spaces.home("user:a"), GIVEN)
    assert environment["A_KEY"] == "secret"
    assert "A_FOLDER" not in environment


async def test_neither_namespaces_nor_runtimes_have_a_home_in_common(tmp_path: Path) -> None:
    homes = {
        Spaces(tmp_path, runtime, "namespaced").home(namespace)
        for runtime in ("a", "b")
        for namespace in ("default", "user:1", "user:_31", "user:A", "user:a")
    }
    assert len(homes) == 10
    assert not any(one in other.parents for one in homes for other in homes if one and other)


async def test_a_home_is_private_and_so_is_what_a_program_has_left_in_it(tmp_path: Path) -> None:
    spaces = Spaces(tmp_path / "runtimes", "a")
    outside = tmp_path / "outside"
    outside.write_text("x")
    outside.chmod(0o644)
    umask = os.umask(0)
    try:
        async with spaces.open_home("user:a") as home:
            assert home is not None
            (home / "sub").mkdir()
            (home / "sub" / "key").write_text("x")
            (home / "link").symlink_to(outside)
    finally:
        os.umask(umask)
    above = [tmp_path / part for part in home.relative_to(tmp_path).parents if part.name]
    assert [mode(folder) for folder in (*above, home, home / "tmp", home / "sub")] == [0o700] * 6
    assert mode(home / "sub" / "key") == 0o600
    assert mode(outside) == 0o644


async def test_an_ephemeral_home_is_fresh_and_gone_after_the_life(tmp_path: Path) -> None:
    spaces = Spaces(tmp_path, "a", "ephemeral")
    homes = []
    for _ in range(2):
        async with spaces.open_home("default") as home:
            assert home is not None
            assert [path.name for path in home.iterdir()] == ["tmp"]
            (home / "closed").mkdir()
            (home / "closed" / "key").write_text("x")
            (home / "closed").chmod(0)
            homes.append(home)
    assert homes[0] != homes[1]
    assert list(ephemeral_folder(tmp_path).iterdir()) == []


async def test_an_ephemeral_home_is_gone_when_the_life_is_cancelled(tmp_path: Path) -> None:
    with trio.move_on_after(60) as scope:
        async with Spaces(tmp_path, "a", "ephemeral").open_home("default"):
            scope.cancel()
            await trio.sleep_forever()
    assert list(ephemeral_folder(tmp_path).iterdir()) == []


async def test_what_a_killed_daemon_left_is_removed(tmp_path: Path) -> None:
    left = ephemeral_folder(tmp_path) / "left"
    (left / "sub").mkdir(parents=True)
    (left / "sub" / "key").write_text("x")
    assert leftovers(tmp_path) == (left,)
    await remove_leftovers(leftovers(tmp_path))
    assert not left.exists()


def looked(
    guest: Guest, home: Path | None, work: Path, words: str, hidden: HiddenFiles = NOTHING
) -> str:
    """Return what a guest sees."""
    argv = guest.argv(["/bin/sh", "-c", words], work, has_tools=True, home=home, hidden=hidden)
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


@needs_bubblewrap
async def test_a_guest_sees_its_own_home_and_no_other_log_in(tmp_path: Path) -> None:
    work, user = tmp_path / "work", tmp_path / "user"
    # The user's way to it may have links.
    (tmp_path / "real").mkdir()
    state = tmp_path / "state"
    state.symlink_to("real")
    for folder in (work, user / ".claude"):
        folder.mkdir(parents=True)
    (user / ".claude" / "key").write_text("of the user")
    guest = Guest(lambda: shutil.which("bwrap"), (state,), (user / ".claude",))
    spaces = Spaces(state / "runtimes", "a")
    async with spaces.open_home("user:a") as one, spaces.open_home("user:b") as other:
        assert one is not None
        assert other is not None
        (other / "key").write_text("of b")
        words = f"touch {one}/made; cat {other}/key {user}/.claude/key; ls {state}/runtimes/*"
        assert looked(guest, one, work, words).split() == ["user-a"]
        assert mode(one / "made") == 0o600
    assert looked(guest, None, work, f"cat {user}/.claude/key; ls {state}") == "of the user"


@needs_bubblewrap
def test_programs_do_not_meet_in_a_folder_where_others_of_their_kind_do(tmp_path: Path) -> None:
    meeting, missing = tmp_path / "meeting", tmp_path / "missing"
    meeting.mkdir()
    (meeting / "socket of another").write_text("")
    guest = Guest(lambda: shutil.which("bwrap"), ())
    hidden = HiddenFiles(rendezvous=(meeting, missing, tmp_path / "no" / "folder"))
    words = f"ls {meeting} {missing}; touch {meeting}/own {missing}/own; ls {meeting}"
    assert looked(guest, None, tmp_path, words, hidden).split()[-1] == "own"
    assert names_in(meeting) == ["socket of another"]
    assert names_in(missing) == []
    assert mode(missing) == 0o700


@needs_bubblewrap
def test_a_program_in_a_folder_that_it_must_not_see_is_refused(tmp_path: Path) -> None:
    program = tmp_path / ".claude" / "local" / "claude"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    guest = Guest(lambda: shutil.which("bwrap"), (), (tmp_path / ".claude",))
    guest.argv([str(program)], tmp_path, has_tools=False)
    with pytest.raises(AgentFailed, match=r"its program is in .*\.claude"):
        guest.argv([str(program)], tmp_path, has_tools=False, home=tmp_path / "home")
