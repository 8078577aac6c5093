"""A hostile workspace stops neither commands nor the daemon."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
import trio

from nousd.tools.sandbox import git_folders
from nousd.tools.sandbox import visible_paths as places
from nousd.tools.sandbox.deny_scan import Search
from nousd.tools.sandbox.interface import Request, SandboxedProcess
from nousd.tools.sandbox.visible_paths import places_of
from tests.tools.bench import SECRET
from tests.tools.sandbox_bench import CHOSEN, SandboxBench


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


def shell(script: str, folder: Path) -> None:
    subprocess.run(["/bin/sh", "-c", script], cwd=folder, check=False, capture_output=True)


async def run(started: SandboxedProcess) -> subprocess.CompletedProcess[bytes]:
    with trio.fail_after(30):
        return await trio.run_process(
            started.argv,
            env=dict(started.env),
            pass_fds=started.descriptors,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )


def test_a_config_of_gits_is_read_in_a_moment_whatever_it_holds(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    size = 60_000
    for content in (
        "\n" * size,
        "path = a" + " " * size + "b",
        "hookspath" + "\t" * size,
        "worktree = " + '"' * size,
        "a/" * (size // 2),
        "path = a/b\n" * (size // 12),
    ):
        (tmp_path / ".git" / "config").write_text(content)
        began = time.process_time()
        assert len(git_folders.closed_in(tmp_path)) < 3 * git_folders.NAMED_MAX
        git_folders.outer_git_folders(tmp_path)
        assert time.process_time() - began < 2


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("value", ["a\0b", "a" * 5000, "b/" * 3000, "~nobody-here/x", "/", ".."])
async def test_a_config_of_gits_that_names_no_place_stops_no_command(
    value: str, held: SandboxBench
) -> None:
    git(held.work, "init", "-q", "sub")
    named = f"[core]\nhooksPath = {value}\nfsmonitor = {value}/{value}\nworktree = {value}\n"
    (held.work / "sub" / ".git" / "config").write_text(named)
    result = await held.call("bash", command="echo done")
    assert (result.text, result.is_error) == ("done", False)


HOSTILE = {
    "a loop": "ln -s AGENTS.md sub/AGENTS.md; ln -s .git sub/.git",
    "a loop of two": "ln -s ../sub/b sub/AGENTS.md; ln -s AGENTS.md sub/b",
    "links that lead away": "ln -s /etc/passwd sub/AGENTS.md; ln -s nowhere sub/.git",
    "a folder nobody may look into": "mkdir sub/.git; chmod 0 sub/.git",
    "pipes": "mkdir -p sub/.git/objects; touch sub/.git/HEAD; mkfifo sub/.git/config sub/AGENTS.md",
}


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("making", HOSTILE.values(), ids=HOSTILE.keys())
async def test_nothing_that_a_command_makes_stops_the_next(making: str, held: SandboxBench) -> None:
    (held.work / "sub").mkdir()
    shell(making, held.work)
    result = await held.call("bash", command="echo done")
    shell("chmod u+rwx sub/*", held.work)
    assert (result.text, result.is_error) == ("done", False)


async def test_a_folder_that_becomes_a_link_before_it_is_opened_opens_nothing(
    held: SandboxBench,
) -> None:
    """By another command, that is: a folder is found first, and opened by the program that is held."""
    held.put("sub/AGENTS.md", "x")
    held.put("sub/deep/file", "x")
    secret = held.outside / "secret.txt"
    request = Request(argv=["/bin/cat", str(secret)], env={"PATH": "/bin"}, workdir=held.work)
    sandbox = held.find()
    assert sandbox is not None
    with sandbox.hold(request) as started:
        shell(f"rm -r sub/deep; ln -s {held.outside} sub/deep", held.work)
        ended = await run(started)
    assert ended.returncode != 0
    assert ended.stdout == b""


CLOSING = {"nothing": 0o000, "only listing": 0o444, "only passing": 0o111, "only writing": 0o333}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("mode", CLOSING.values(), ids=CLOSING.keys())
async def test_a_command_cannot_open_a_closed_place_by_closing_the_folder(
    mode: int, held: SandboxBench
) -> None:
    """To a root all folders are open; for others this one is, whenever they say so."""
    held.put("sub/deep/AGENTS.md", "good")
    held.put("sub/deep/.env", SECRET)
    held.close(reading=[r"(.*/)?\.env"])
    for folder in ("sub/deep", "sub"):
        await held.call("bash", command=f"chmod {mode:o} {folder}")
        try:
            outcomes = await held.attack(f"""
tried("allow it", lambda: os.chmod({folder!r}, 0o755))
tried("change what agents obey", lambda: open("sub/deep/AGENTS.md", "a").write("bad"))
tried("read what is denied", lambda: open("sub/deep/.env").read() or open("/none"))
""")
        finally:
            (held.work / folder).chmod(0o755)
        assert set(outcomes.values()) - {"done"}
        assert outcomes["change what agents obey"] != "done"
        assert outcomes["read what is denied"] != "done"
    assert (held.work / "sub" / "deep" / "AGENTS.md").read_text() == "good"


async def test_a_workdir_that_has_become_a_link_opens_nothing(held: SandboxBench) -> None:
    """Another command in the same workspace may replace it, after any check."""
    secret = held.outside / "secret.txt"
    held.work.rename(held.work.with_name("moved"))
    held.work.symlink_to(held.outside)
    command = f"cat secret.txt {secret} {held.work}/secret.txt; echo x >> {held.work}/secret.txt"
    request = Request(argv=["/bin/sh", "-c", command], env={"PATH": "/bin"}, workdir=held.work)
    sandbox = held.find()
    assert sandbox is not None
    with sandbox.hold(request) as started:
        ended = await run(started)
    assert ended.returncode != 0
    assert ended.stdout == b""
    assert secret.read_text() == SECRET


async def test_of_many_repositories_below_all_of_git_is_closed_in_the_later(
    held: SandboxBench,
) -> None:
    for number in range(places.REPOSITORIES_MAX + 2):
        git(held.work, "init", "-q", f"r{number}")
    found = places_of(Request(argv=[], env={}, workdir=held.work), CHOSEN, Search()).protected
    whole = [path for path in found if path.name == ".git" and path.parent != held.work]
    assert len(whole) == 2
    assert len([path for path in found if path.name == "hooks"]) == places.REPOSITORIES_MAX


@pytest.mark.parametrize("value", ["a\0b", "a" * 5000, ""])
def test_a_file_of_gits_that_names_no_place_opens_nothing(value: str, tmp_path: Path) -> None:
    (tmp_path / ".git").write_text(f"gitdir: {value}\n")
    assert git_folders.outer_git_folders(tmp_path) == ()
