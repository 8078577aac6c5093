"""The tool ``git`` on real repositories, some of which try to run programs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nousd.errors import ToolArgumentsInvalid, ToolError
from nousd.tools.builtin.catalog import builtin_tools
from nousd.wire.objects.tool_footprint import Access
from tests.tools.bench import Bench
from tests.tools.sandbox_bench import SandboxBench

pytestmark = pytest.mark.slow(keep=1)  # the default suite tries one of the two sandboxes

IDENTITY = ("-c", "user.name=Ann", "-c", "user.email=a@b")


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", *IDENTITY, "-C", str(folder), *arguments], check=True, capture_output=True
    )


@pytest.fixture
def repository(sandbox_bench: SandboxBench) -> SandboxBench:
    git(sandbox_bench.work, "init", "-q", "-b", "main")
    sandbox_bench.put(".gitignore", ".state\noutcomes.json\n")
    sandbox_bench.put("a.txt", "one\n")
    git(sandbox_bench.work, "add", ".")
    git(sandbox_bench.work, "commit", "-qm", "first")
    return sandbox_bench


async def test_status_log_and_diff_show_the_repository(repository: SandboxBench) -> None:
    repository.put("a.txt", "two\n")
    repository.put("new.txt", "x")
    assert await repository.text("git", subcommand="status") == "## main\n M a.txt\n?? new.txt"
    assert "Ann (HEAD -> main) first" in await repository.text("git", subcommand="log")
    diff = await repository.text("git", subcommand="diff")
    assert "-one\n+two" in diff
    assert await repository.text("git", subcommand="diff", staged=True) == "(nothing)"
    git(repository.work, "add", "a.txt")
    assert "+two" in await repository.text("git", subcommand="diff", staged=True)
    assert "+two" in await repository.text("git", subcommand="diff", ref="HEAD", path="a.txt")
    assert (
        await repository.text("git", subcommand="diff", ref="HEAD", path="new.txt") == "(nothing)"
    )
    stat = await repository.text("git", subcommand="diff", ref="HEAD", stat=True)
    assert "1 file changed, 1 insertion(+), 1 deletion(-)" in stat


@pytest.mark.slow
async def test_log_is_limited_by_count_and_range_and_path(repository: SandboxBench) -> None:
    for number in range(3):
        repository.put("b.txt", str(number))
        git(repository.work, "add", "b.txt")
        git(repository.work, "commit", "-qm", f"commit {number}")
    assert len((await repository.text("git", subcommand="log", max_count=2)).splitlines()) == 2
    ranged = await repository.text("git", subcommand="log", ref="HEAD~1..HEAD")
    assert ranged.endswith("commit 2")
    assert (await repository.text("git", subcommand="log", path="a.txt")).endswith("first")


@pytest.mark.slow
async def test_a_branch_is_created_and_listed_and_deleted(
    repository: SandboxBench,
) -> None:
    await repository.call("git", subcommand="branch", action="create", name="topic", ref="main")
    assert "topic" in await repository.text("git", subcommand="branch")
    deleted = await repository.call("git", subcommand="branch", action="delete", name="topic")
    assert not deleted.is_error, deleted.text
    assert "topic" not in await repository.text("git", subcommand="branch")


@pytest.mark.slow
async def test_a_worktree_is_created_in_the_workspace_and_removed(
    repository: SandboxBench,
) -> None:
    await repository.call("git", subcommand="worktree", action="create", name="topic")
    assert (repository.work / ".worktrees" / "topic" / "a.txt").read_text() == "one\n"
    assert ".worktrees/topic" in await repository.text("git", subcommand="worktree")
    assert await repository.text("git", subcommand="status") == "## main"
    commit = (
        "cd .worktrees/topic && echo b > b && git add b && git -c user.name=a -c user.email=a@b"
    )
    done = await repository.call("bash", command=f"{commit} commit -qm b && git status --short")
    assert not done.is_error, done.text
    removed = await repository.call("git", subcommand="worktree", action="delete", name="topic")
    assert not removed.is_error, removed.text
    assert not (repository.work / ".worktrees" / "topic").exists()


async def test_a_failure_of_git_is_reported_with_its_message(repository: SandboxBench) -> None:
    result = await repository.call("git", subcommand="log", ref="no-such-branch")
    assert result.is_error
    assert "'no-such-branch'" in result.text


async def test_a_directory_that_is_not_a_repository_is_an_error(
    sandbox_bench: SandboxBench,
) -> None:
    result = await sandbox_bench.call("git", subcommand="status")
    assert result.is_error
    assert "not a git repository" in result.text


async def test_a_folder_that_only_has_the_layout_of_a_repository_is_not_taken_for_one(
    sandbox_bench: SandboxBench,
) -> None:
    for name, content in (("HEAD", "ref: refs/heads/main\n"), ("objects/x", ""), ("refs/x", "")):
        sandbox_bench.put(name, content)
    sandbox_bench.put("config", "[core]\nrepositoryformatversion = 0\nbare = false\nworktree = .\n")
    result = await sandbox_bench.call("git", subcommand="status")
    assert result.is_error
    assert "safe.bareRepository" in result.text


@pytest.mark.slow
async def test_programs_that_a_repository_configures_cannot_write_outside_the_workspace(
    repository: SandboxBench,
) -> None:
    escape = f"touch {repository.outside}/escaped; touch {repository.work}/ran; cat"
    config = {
        "core.fsmonitor": f"sh -c '{escape}'",
        "core.sshCommand": escape,
        "core.pager": escape,
        "diff.external": f"sh -c '{escape}'",
        "diff.evil.textconv": f"sh -c '{escape}'",
        "diff.evil.command": f"sh -c '{escape}'",
        "filter.evil.clean": escape,
        "filter.evil.smudge": escape,
        "gpg.program": escape,
        "alias.status": f"!{escape}",
    }
    for name, value in config.items():
        git(repository.work, "config", name, value)
    repository.put(".gitattributes", "*.txt filter=evil diff=evil\n")
    repository.put("a.txt", "two\n")
    for number, hook in enumerate(("post-checkout", "reference-transaction", "post-index-change")):
        path = repository.put(f".git/hooks/{hook}", f"#!/bin/sh\n{escape} # {number}\n")
        path.chmod(0o755)
    for arguments in (
        *({"subcommand": name} for name in ("status", "log", "diff", "branch", "worktree")),
        {"subcommand": "branch", "action": "create", "name": "b"},
        {"subcommand": "worktree", "action": "create", "name": "w"},
    ):
        await repository.call("git", **arguments)
    assert [path.name for path in repository.outside.iterdir()] == ["secret.txt"]


@pytest.mark.slow
async def test_status_and_diff_do_not_change_the_workspace(repository: SandboxBench) -> None:
    git(repository.work, "config", "filter.evil.clean", "touch ran; cat")
    repository.put(".gitattributes", "*.txt filter=evil\n")
    repository.put("a.txt", "two\n")
    index = (repository.work / ".git" / "index").read_bytes()
    names = repository.names()
    await repository.call("git", subcommand="status")
    await repository.call("git", subcommand="diff")
    assert (repository.work / ".git" / "index").read_bytes() == index
    assert repository.names() == names


@pytest.mark.slow(keep=11)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"subcommand": "log", "ref": "--output=x"}, "git.ref must match"),
        ({"subcommand": "log", "ref": "a b"}, "git.ref must match"),
        ({"subcommand": "log", "ref": "main\n"}, "git.ref must match"),
        ({"subcommand": "log", "ref": "HEAD:secret"}, "git.ref must match"),
        ({"subcommand": "branch", "action": "create"}, "git.name is required"),
        ({"subcommand": "branch", "action": "create", "name": "-D"}, "git.name must match"),
        ({"subcommand": "worktree", "action": "create", "name": ".."}, "git.name must match"),
        ({"subcommand": "worktree", "action": "create", "name": "a/b"}, "git.name must match"),
        ({"subcommand": "worktree", "action": "delete", "name": "../x"}, "git.name must match"),
        ({"subcommand": "status", "action": "delete"}, "git.action must be list with status"),
        ({"subcommand": "diff", "path": "a\0b"}, "git.path must not hold a NUL character"),
    ],
)
async def test_arguments_that_are_invalid_or_look_like_options_are_refused(
    arguments: dict[str, Any], message: str, bench: Bench
) -> None:
    with pytest.raises(ToolArgumentsInvalid, match=f"^validation_failed: {message}"):
        await bench.call("git", **arguments)


def test_an_unknown_subcommand_is_refused() -> None:
    tool = next(tool for tool in builtin_tools(allow_exec=True) if tool.name == "git")
    with pytest.raises(ToolArgumentsInvalid, match="must be one of branch, diff, log, status, wor"):
        tool.validate({"subcommand": "push"})


async def test_a_path_is_never_taken_for_an_option_or_pathspec_magic(
    repository: SandboxBench,
) -> None:
    for path in ("--output=stolen", ":(top)a.txt"):
        assert await repository.text("git", subcommand="diff", path=path) == "(nothing)"
    assert "stolen" not in repository.names()


@pytest.fixture
def closed_repository(repository: SandboxBench) -> SandboxBench:
    """A repository with a directory and a file closed by rules, both changed since their commit."""
    repository.put("secrets/key", "old key\n")
    repository.put("deep/.env", "old environment\n")
    git(repository.work, "add", ".")
    git(repository.work, "commit", "-qm", "second")
    repository.put("a.txt", "two\n")
    repository.put("secrets/key", "new key\n")
    repository.put("deep/.env", "new environment\n")
    restricted = repository.context.path_sandbox.restrict(
        reading=[re.compile("secrets(/.*)?"), re.compile(r"(.*/)?\.env")]
    )
    repository.context = msgspec.structs.replace(repository.context, path_sandbox=restricted)
    return repository


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        {"subcommand": "status"},
        {"subcommand": "diff"},
        {"subcommand": "diff", "ref": "HEAD"},
        {"subcommand": "diff", "ref": "HEAD~1", "path": "."},
        {"subcommand": "diff", "ref": "HEAD", "stat": True},
    ],
    ids=str,
)
async def test_paths_closed_to_reading_are_omitted_with_a_notice(
    closed_repository: SandboxBench, arguments: dict[str, Any]
) -> None:
    result = await closed_repository.call("git", **arguments)
    assert not result.is_error, result.text
    assert "a.txt" in result.text
    for word in ("key", "environment", ".env"):
        assert word not in result.text
    assert re.search(r"\[left out, because rules close them to reading: [12]\]\Z", result.text)


@pytest.mark.slow
async def test_committed_and_staged_changes_of_closed_paths_are_omitted(
    closed_repository: SandboxBench,
) -> None:
    text = await closed_repository.text("git", subcommand="diff", ref="HEAD~1..HEAD")
    assert text == "(nothing)\n\n[left out, because rules close them to reading: 2]"
    git(closed_repository.work, "add", "secrets/key")
    assert "key" not in await closed_repository.text("git", subcommand="diff", staged=True)


@pytest.mark.slow
async def test_nothing_is_shown_if_the_closed_paths_cannot_be_determined(
    closed_repository: SandboxBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed_repository.put("a\nb", "x")
    with pytest.raises(
        ToolError, match=r"^git_failed: rules close files to reading, and it cannot"
    ):
        await closed_repository.call("git", subcommand="status")
    with pytest.raises(ToolError, match=r"^git_failed: .*no-such"):
        await closed_repository.call("git", subcommand="diff", ref="no-such")
    monkeypatch.setattr("nousd.tools.builtin.git.NAMES_BYTES_MAX", 3)
    with pytest.raises(ToolError, match=r"^git_failed: it said more than 3 bytes"):
        await closed_repository.call("git", subcommand="diff")
    monkeypatch.undo()
    monkeypatch.setattr("nousd.tools.builtin.git.CLOSED_MAX", 1)
    with pytest.raises(ToolError, match=r"^git_failed: rules close more than 1 of the changed"):
        await closed_repository.call("git", subcommand="diff")


async def test_the_access_of_a_call_has_its_classes_and_paths(bench: Bench) -> None:
    tool = bench.registry.get("git")
    assert tool is not None

    async def facts(**arguments: Any) -> Access:
        return await tool.access(tool.validate(arguments), bench.context)

    assert await facts(subcommand="status") == Access(classes=frozenset({"read"}), is_confined=True)
    assert (await facts(subcommand="diff", path="x/../a")).paths == ("a",)
    change = await facts(subcommand="worktree", action="create", name="w")
    assert change == Access(
        classes=frozenset({"write", "exec"}), paths=(".worktrees/w",), is_confined=True
    )


async def test_git_does_not_run_without_a_sandbox(bench: Bench) -> None:
    git(bench.work, "init", "-q")
    git(bench.work, "config", "core.fsmonitor", f"touch {bench.outside}/ran")
    with pytest.raises(
        ToolError, match=r"^git_failed: no sandbox works on this machine, and a rep"
    ):
        await bench.call("git", subcommand="status")
    assert not (bench.outside / "ran").exists()


def test_without_execution_there_is_no_git() -> None:
    assert "git" not in {tool.name for tool in builtin_tools(allow_exec=False)}
