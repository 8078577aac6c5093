"""What a sandbox closes because git obeys it: bounded in number, and what is beyond is reported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nousd.tools.sandbox import git_folders, visible_paths
from tests.tools.sandbox_bench import BACKENDS, SandboxBench
from tests.tools.test_trap_watch import bench_of, git, left_by

pytestmark = pytest.mark.slow(keep=1)  # the default suite tries one of the two sandboxes


@pytest.fixture(params=BACKENDS)
def held(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SandboxBench:
    return bench_of(request.param, tmp_path, monkeypatch)


def make_repository(folder: Path) -> None:
    """Make what git takes for a repository, without the cost of a program."""
    for name in ("objects", "refs", "hooks"):
        (folder / ".git" / name).mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / ".git" / "config").write_text("[core]\n\trepositoryformatversion = 0\n")


@pytest.mark.slow
async def test_repositories_beyond_a_number_are_no_mounts_and_changes_beyond_are_reported(
    held: SandboxBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visible_paths, "CLOSED_REPOSITORIES_MAX", 30)
    monkeypatch.setattr("nousd.tools.sandbox.deny_scan.PROTECTED_MAX", 30)
    for number in range(80):
        make_repository(held.work / "sub" / f"{number:04}")
    monkeypatch.setattr(visible_paths, "SHOWN_MAX", 10_000)
    # However slow the machine is, everything is looked at.
    monkeypatch.setattr("nousd.tools.sandbox.trap_watch.SECONDS_MAX", 600.0)
    monkeypatch.setattr("nousd.tools.sandbox.deny_scan.SECONDS_MAX", 600.0)
    result = await held.call(
        "bash",
        command="cd sub; for i in *; do echo x >> $i/.git/config; echo x > $i/.git/hooks/pre-commit;"
        " done 2> /dev/null; true",
    )
    assert result.sandbox is not None
    most = visible_paths.CLOSED_REPOSITORIES_MAX
    closed = [place for place in result.sandbox.mounts if ".git" in place]
    of_each = 6
    assert len(closed) < most + of_each * visible_paths.REPOSITORIES_MAX
    assert result.sandbox.is_partial
    unchanged = [
        folder
        for folder in (held.work / "sub").iterdir()
        if folder.joinpath(".git", "config").read_text().endswith("= 0\n")
    ]
    assert 0 < len(unchanged) <= most
    assert result.sandbox.is_left_partial
    left = left_by(result)
    assert all(place.endswith(("/.git/config", "/.git/hooks/pre-commit")) for place in left)
    assert len(left) == 20
    for place in left:
        assert not any(place.startswith(f"sub/{folder.name}/") for folder in unchanged)


async def test_of_too_many_worktrees_none_can_be_changed_or_made(
    held: SandboxBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_folders, "WORKTREES_MAX", 3)
    make_repository(held.work / "sub")
    for number in range(5):
        (held.work / "sub" / ".git" / "worktrees" / str(number)).mkdir(parents=True)
    result = await held.call(
        "bash",
        command="cd sub/.git/worktrees; for i in 0 1 2 3 4; do echo x > $i/config.worktree; done;"
        " mkdir 5",
    )
    assert result.is_error
    assert list((held.work / "sub" / ".git" / "worktrees").rglob("config.worktree")) == []
    assert not (held.work / "sub" / ".git" / "worktrees" / "5").exists()


async def test_a_config_that_is_too_large_to_read_makes_the_protection_partial(
    held: SandboxBench,
) -> None:
    make_repository(held.work)
    config = held.work / ".git" / "config"
    fine = await held.call("bash", command="true")
    padding = "# x\n" * (git_folders.CONFIG_BYTES_MAX // 4)
    config.write_text(f"{padding}[core]\n\thooksPath = hooks\n")
    result = await held.call("bash", command="true")
    assert fine.sandbox is not None
    assert result.sandbox is not None
    assert (fine.sandbox.is_partial, result.sandbox.is_partial) == (False, True)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("kind", ["worktree", "submodule", "subfolder"])
async def test_hooks_of_a_repository_elsewhere_that_lie_in_the_workspace_are_closed(
    held: SandboxBench, kind: str
) -> None:
    main = held.outside / "main"
    main.mkdir()
    git(main, "init", "-q")
    git(main, "commit", "-q", "--allow-empty", "-m", "one")
    if kind == "worktree":
        git(main, "worktree", "add", "-q", str(held.work / "tree"))
        work = held.work / "tree"
        git(main, "config", "core.hooksPath", "hooks")
    elif kind == "submodule":
        git(held.work, "init", "-q")
        git(held.work, "-c", "protocol.file.allow=always", "submodule", "add", str(main), "tree")
        work = held.work / "tree"
        git(work, "config", "core.hooksPath", "hooks")
    else:
        git(held.work.parent, "init", "-q")
        git(held.work.parent, "config", "core.hooksPath", "work/tree/hooks")
        work = held.work / "tree"
    hook = held.put("tree/hooks/pre-commit", "ours\n")
    if kind != "subfolder":
        assert git(work, "rev-parse", "--git-path", "hooks").strip() == "hooks"
    result = await held.call("bash", command="echo x > tree/hooks/pre-commit; touch tree/hooks/y")
    assert result.is_error
    assert hook.read_text() == "ours\n"
    assert os.listdir(hook.parent) == ["pre-commit"]  # noqa: PTH208


async def test_a_folder_called_like_a_file_of_gits_costs_no_descriptors(held: SandboxBench) -> None:
    make_repository(held.work / "sub")
    (held.work / "sub" / ".git" / "info" / "attributes").mkdir(parents=True)
    (held.work / "sub" / ".git" / "rebase-merge" / "git-rebase-todo").mkdir(parents=True)
    await held.call("bash", command="true")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    await held.call("bash", command="true")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
