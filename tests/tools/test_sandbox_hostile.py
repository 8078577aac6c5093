"""A hostile workspace stops neither commands nor the daemon."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from nousd.errors import ToolError
from nousd.tools.process.supervisor import ProcessEnd, run_supervised
from nousd.tools.sandbox import git_folders
from nousd.tools.sandbox import visible_paths as places
from nousd.tools.sandbox.deny_scan import Search
from nousd.tools.sandbox.interface import Request, SandboxedProcess
from nousd.tools.sandbox.landlock import Landlock
from nousd.tools.sandbox.visible_paths import places_of
from tests.harness.daemon import WAIT_SECONDS
from tests.tools.bench import SECRET
from tests.tools.sandbox_bench import CHOSEN, PYTHON, SandboxBench


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


def shell(script: str, folder: Path) -> None:
    subprocess.run(["/bin/sh", "-c", script], cwd=folder, check=False, capture_output=True)


async def run(started: SandboxedProcess, workdir: Path) -> tuple[ProcessEnd, bytes]:
    """Return how a command ended under its supervisor, and what it printed to stdout."""
    output = bytearray()
    ended = await run_supervised(
        started.argv,
        cwd=workdir,
        env=started.env,
        on_output=output.extend,
        on_errors=lambda _: None,
        timeout_seconds=WAIT_SECONDS,
        sandboxed=started,
    )
    return ended, bytes(output)


def test_a_hostile_git_config_is_parsed_within_two_seconds(tmp_path: Path) -> None:
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
        assert len(git_folders.find_closed_git_paths(tmp_path)) < 3 * git_folders.NAMED_MAX
        git_folders.outer_git_folders(tmp_path)
        assert time.process_time() - began < 2


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("value", ["a\0b", "a" * 5000, "b/" * 3000, "~nobody-here/x", "/", ".."])
async def test_a_git_config_with_invalid_paths_does_not_stop_a_command(
    value: str, sandbox_bench: SandboxBench
) -> None:
    git(sandbox_bench.work, "init", "-q", "sub")
    named = f"[core]\nhooksPath = {value}\nfsmonitor = {value}/{value}\nworktree = {value}\n"
    (sandbox_bench.work / "sub" / ".git" / "config").write_text(named)
    result = await sandbox_bench.call("bash", command="echo done")
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
async def test_hostile_files_of_a_command_do_not_stop_the_next_one(
    making: str, sandbox_bench: SandboxBench
) -> None:
    (sandbox_bench.work / "sub").mkdir()
    shell(making, sandbox_bench.work)
    result = await sandbox_bench.call("bash", command="echo done")
    shell("chmod u+rwx sub/*", sandbox_bench.work)
    assert (result.text, result.is_error) == ("done", False)


LEFT_BEHIND = {
    "a tree deeper than any path": f"""{PYTHON} -I -c 'import os
for _ in range(1200): os.mkdir("d"), os.chdir("d")'""",
    "folders closed to their user": "mkdir -p a/b/c; touch a/b/c/d; chmod 0 a/b/c a/b; chmod 0111 a",
    "closed itself": "mkdir a; touch a/b; chmod 0 .",
    "links out of it": "mkdir a; ln -s $OLDPWD a/b; ln -s $OLDPWD c; ln -s /tmp d",
    "names that are numbers and more": "mkdir -p 0/1/2 1/0/2 2/1/0 $'a\\nb/\\xff/c'",
}


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("making", LEFT_BEHIND.values(), ids=LEFT_BEHIND.keys())
async def test_whatever_a_command_leaves_in_its_temporary_folder_goes(
    making: str, sandbox_bench: SandboxBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = sandbox_bench.outside / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    sandbox_bench.put("kept/file", "kept")
    result = await sandbox_bench.call("bash", command=f'cd "$TMPDIR"; {making}; echo done')
    assert result.text.endswith("done")
    assert list(temporary.iterdir()) == []
    assert (sandbox_bench.work / "kept" / "file").read_text() == "kept"


@pytest.mark.slow
def test_what_a_killed_daemon_has_left_does_not_stop_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.run(["/bin/sh", "-c", "echo $$"], check=True, capture_output=True, text=True)
    (tmp_path / f"nousd-sandbox-{int(ended.stdout)}-x").mkdir()
    folder = os.open(tmp_path / f"nousd-sandbox-{int(ended.stdout)}-x", os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=folder)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    Landlock(CHOSEN)
    assert list(tmp_path.iterdir()) == []


async def test_a_directory_that_becomes_a_link_before_it_is_opened_opens_nothing(
    sandbox_bench: SandboxBench,
) -> None:
    """Another command makes the link after the daemon has found the directory to open."""
    sandbox_bench.put("sub/AGENTS.md", "x")
    sandbox_bench.put("sub/deep/file", "x")
    secret = sandbox_bench.outside / "secret.txt"
    request = Request(
        argv=["/bin/cat", str(secret)], env={"PATH": "/bin"}, workdir=sandbox_bench.work
    )
    sandbox = sandbox_bench.find()
    assert sandbox is not None
    with sandbox.hold(request) as started:
        shell(f"rm -r sub/deep; ln -s {sandbox_bench.outside} sub/deep", sandbox_bench.work)
        ended, output = await run(started, sandbox_bench.work)
    assert ended.code != 0
    assert (ended.timed_out, output) == (False, b"")


CLOSING = {"nothing": 0o000, "only listing": 0o444, "only passing": 0o111, "only writing": 0o333}


@pytest.mark.slow
@pytest.mark.parametrize("mode", CLOSING.values(), ids=CLOSING.keys())
async def test_removing_the_permissions_of_a_directory_does_not_open_a_closed_path(
    mode: int, sandbox_bench: SandboxBench
) -> None:
    """Root may enter any directory; other users may restore the permissions of their own."""
    sandbox_bench.put("sub/deep/AGENTS.md", "good")
    sandbox_bench.put("sub/deep/.env", SECRET)
    sandbox_bench.close(reading=[r"(.*/)?\.env"])
    for folder in ("sub/deep", "sub"):
        await sandbox_bench.call("bash", command=f"chmod {mode:o} {folder}")
        try:
            outcomes = await sandbox_bench.attack(f"""
tried("allow it", lambda: os.chmod({folder!r}, 0o755))
tried("change what agents obey", lambda: open("sub/deep/AGENTS.md", "a").write("bad"))
tried("read what is denied", lambda: open("sub/deep/.env").read() or open("/none"))
""")
        except ToolError as refused:
            # Only root can look for denied files in there; of others nothing runs.
            if os.geteuid() == 0 or "sandbox_failed" not in str(refused):
                raise
            continue
        finally:
            (sandbox_bench.work / folder).chmod(0o755)
        assert set(outcomes.values()) - {"done"}
        assert outcomes["change what agents obey"] != "done"
        assert outcomes["read what is denied"] != "done"
    assert (sandbox_bench.work / "sub" / "deep" / "AGENTS.md").read_text() == "good"


async def test_a_workspace_that_has_become_a_link_opens_nothing(
    sandbox_bench: SandboxBench,
) -> None:
    """Another command in the same workspace may replace it, after any check."""
    secret = sandbox_bench.outside / "secret.txt"
    sandbox_bench.work.rename(sandbox_bench.work.with_name("moved"))
    sandbox_bench.work.symlink_to(sandbox_bench.outside)
    linked = sandbox_bench.work / "secret.txt"
    command = f"cat secret.txt {secret} {linked}; echo x >> {linked}"
    request = Request(
        argv=["/bin/sh", "-c", command], env={"PATH": "/bin"}, workdir=sandbox_bench.work
    )
    sandbox = sandbox_bench.find()
    assert sandbox is not None
    with sandbox.hold(request) as started:
        ended, output = await run(started, sandbox_bench.work)
    assert ended.code != 0
    assert (ended.timed_out, output) == (False, b"")
    assert secret.read_text() == SECRET


@pytest.mark.slow(keep=1)
async def test_nested_repositories_beyond_the_limit_have_all_of_git_protected(
    sandbox_bench: SandboxBench,
) -> None:
    for number in range(places.REPOSITORIES_MAX + 2):
        git(sandbox_bench.work, "init", "-q", f"r{number}")
    found = places_of(
        Request(argv=[], env={}, workdir=sandbox_bench.work), CHOSEN, Search()
    ).protected
    whole = [path for path in found if path.name == ".git" and path.parent != sandbox_bench.work]
    assert len(whole) == 2
    assert len([path for path in found if path.name == "hooks"]) == places.REPOSITORIES_MAX


@pytest.mark.parametrize("value", ["a\0b", "a" * 5000, ""])
def test_a_git_file_with_an_invalid_path_opens_nothing(value: str, tmp_path: Path) -> None:
    (tmp_path / ".git").write_text(f"gitdir: {value}\n")
    assert git_folders.outer_git_folders(tmp_path) == ()
