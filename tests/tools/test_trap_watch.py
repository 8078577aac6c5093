"""Files that a sandboxed command leaves behind for git, editors and shells to obey: each is reported."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from nousd.machine.policy.protected_paths import OBEYED, places_in_sandbox
from nousd.tools.interface import ToolResult
from nousd.tools.sandbox import deny_scan, trap_watch
from nousd.tools.sandbox.detect import Detector, SandboxName
from nousd.tools.sandbox.trap_watch import ObeyedNames, TrapWatch
from tests.tools.sandbox_bench import BACKENDS, CHOSEN, SandboxBench

pytestmark = pytest.mark.slow(keep=1)  # the default suite tries one of the two sandboxes

RAN = "ran-on-the-host"

CONFIG = f"""[core]
repositoryformatversion = 0
bare = false
worktree = ..
fsmonitor = touch {RAN}; false
"""

ROWS = tuple(
    ObeyedNames(
        files.program, files.when, tuple(place for place in files.places if place != ".nousd")
    )
    for files in OBEYED
)


@pytest.fixture(params=BACKENDS)
def held(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SandboxBench:
    """A sandbox as the daemon sets it up, with a folder in which commands can make files."""
    return bench_of(request.param, tmp_path, monkeypatch)


def bench_of(name: SandboxName, root: Path, monkeypatch: pytest.MonkeyPatch) -> SandboxBench:
    closed = tuple(
        place for place in places_in_sandbox("closed") if place not in {".git", ".nousd"}
    )
    chosen = msgspec.structs.replace(CHOSEN, protected=closed, obeyed=ROWS)
    bench = SandboxBench(root, name, chosen)
    bench.find = Detector(name, chosen)
    monkeypatch.setenv("HOME", str(bench.home))
    (bench.work / "sub").mkdir()
    return bench


def left_by(result: ToolResult) -> dict[str, str]:
    """Return path -> program of the files that a command is reported to have left."""
    assert result.sandbox is not None
    return {file.path: file.program for file in result.sandbox.left}


def git(folder: Path, *words: str) -> str:
    """Run the real git of a user without settings."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "u",
        "GIT_AUTHOR_EMAIL": "u@example.org",
        "GIT_COMMITTER_NAME": "u",
        "GIT_COMMITTER_EMAIL": "u@example.org",
    }
    done = subprocess.run(
        ["git", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.behaviour("files_left_for_programs_to_obey_are_reported")
async def test_a_new_repository_is_reported_and_would_run_its_program(held: SandboxBench) -> None:
    held.put("config", CONFIG)
    result = await held.call(
        "bash",
        command="mkdir -p sub/.git/objects sub/.git/refs && echo ref: refs/heads/main > sub/.git/HEAD"
        " && cp config sub/.git/config",
    )
    assert left_by(result) == {"sub/.git": "git"}
    assert "[the command made or changed files that programs obey although" in result.text
    git(held.work / "sub", "status")
    assert list((held.work / "sub").rglob(RAN)) != []


async def test_a_repository_of_another_name_is_reported(held: SandboxBench) -> None:
    result = await held.call(
        "bash", command="mkdir -p sub/x/objects sub/x/refs && echo ref: refs/heads/a > sub/x/HEAD"
    )
    assert left_by(result) == {"sub/x": "git"}
    again = await held.call("bash", command="echo x > sub/file")
    assert left_by(again) == {}


@pytest.mark.slow
async def test_the_workspace_as_a_repository_is_reported(held: SandboxBench) -> None:
    git(held.work, "init", "-q")
    git(held.work, "commit", "-q", "--allow-empty", "-m", "one")
    held.put("config", CONFIG.replace("worktree = ..", "worktree = ."))
    result = await held.call(
        "bash", command="mkdir objects refs && mv .git/HEAD . && echo ref: refs/heads/a > HEAD"
    )
    assert left_by(result) == {".": "git"}
    git(held.work, "status")
    assert list(held.work.rglob(RAN)) != []


@pytest.mark.slow
async def test_the_config_of_the_user_stays_as_it_is_where_there_is_no_repository(
    held: SandboxBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for name, place in ((".gitconfig", "config"), (".config/git/attributes", "attributes")):
        held.put(f"dotfiles/{place}", "# mine\n")
        (held.home / name).parent.mkdir(parents=True, exist_ok=True)
        (held.home / name).symlink_to(held.work / "dotfiles" / place)
    await held.call("bash", command="cd dotfiles; for i in config attributes; do echo x > $i; done")
    await held.call("bash", command="cd dotfiles; touch new; mv new config; mv new attributes")
    for name in ("config", "attributes"):
        assert (held.work / "dotfiles" / name).read_text() == "# mine\n"


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("inner", [".git/refs/x", ".git/objects/worktrees/x"])
async def test_a_repository_in_a_repository_is_no_worktree(held: SandboxBench, inner: str) -> None:
    git(held.work, "init", "-q")
    git(held.work, "commit", "-q", "--allow-empty", "-m", "one")
    held.put("config", CONFIG.replace("worktree = ..", f"worktree = {held.work}/sub"))
    result = await held.call(
        "bash",
        command=f"mkdir -p {inner}/objects {inner}/refs && echo ref: refs/heads/a > {inner}/HEAD"
        f" && cp config {inner}/config && echo gitdir: ../{inner} > sub/.git",
    )
    assert left_by(result) == {"sub/.git": "git", inner: "git"}
    git(held.work / "sub", "status")
    assert list(held.work.rglob(RAN)) != []


@pytest.mark.slow
async def test_a_worktree_beyond_those_looked_at_is_judged_where_it_is_named(
    held: SandboxBench,
) -> None:
    git(held.work, "init", "-q")
    git(held.work, "commit", "-q", "--allow-empty", "-m", "one")
    held.put("common/config", CONFIG)
    result = await held.call(
        "bash",
        command="mkdir -p common/objects common/refs; mkdir .git/worktrees; cd .git/worktrees;"
        " for i in $(seq 300); do mkdir $i; cp ../HEAD $i; echo $OLDPWD/common > $i/commondir;"
        " mkdir ../../sub/$i; echo gitdir: ../../.git/worktrees/$i > ../../sub/$i/.git; done",
    )
    assert result.sandbox is not None
    assert {file.path.rpartition("/")[2] for file in result.sandbox.left} == {".git"}
    assert result.sandbox.is_left_partial


@pytest.mark.slow
@pytest.mark.parametrize(
    "content", ["gitdir: " + "x/../" * 200_000, "gitdir: /nowhere"], ids=["long", "many"]
)
def test_no_file_that_a_command_left_makes_the_look_slow(tmp_path: Path, content: str) -> None:
    places = [f"{number}/.git" for number in range(1 if len(content) > 100 else 2000)]
    for place in places:
        (tmp_path / place).parent.mkdir()
        (tmp_path / place).write_text(content)
    found = deny_scan.FoundFiles(named=tuple(places), repositories=tuple(places))
    watch = TrapWatch(tmp_path, ROWS, lambda: found, before=deny_scan.FoundFiles())
    began = time.process_time()
    left = watch.look_again()
    assert time.process_time() - began < 2
    assert left.files


def test_the_look_reads_for_a_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trap_watch, "SECONDS_MAX", 0.0)
    places = [f"{number}/.npmrc" for number in range(3)]
    for place in places:
        (tmp_path / place).parent.mkdir()
        (tmp_path / place).touch()
    found = deny_scan.FoundFiles(named=tuple(places))
    left = TrapWatch(tmp_path, ROWS, lambda: found, before=deny_scan.FoundFiles()).look_again()
    assert left.is_partial
    assert len(left.files) == 1


async def test_names_of_any_bytes_are_named_printably(held: SandboxBench) -> None:
    result = await held.call(
        "bash",
        command="mkdir sub/$'\\xff' sub/$'a\\nb' && touch sub/$'\\xff'/.envrc sub/$'a\\nb'/.envrc",
    )
    assert set(left_by(result)) == {"sub/\\xff/.envrc", "sub/a\\nb/.envrc"}
    assert msgspec.json.decode(msgspec.json.encode(result.text)) == result.text


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("place", "content"),
    [
        ("rebase-merge/strategy", "a/../evil"),
        ("sequencer/opts", "[options] strategy = a/../evil"),
        ("info/attributes", "*.txt filter=mine"),
    ],
)
async def test_other_files_of_a_repository_that_name_programs_are_reported(
    held: SandboxBench, place: str, content: str
) -> None:
    git(held.work / "sub", "init", "-q")
    target = held.put(f"sub/.git/{place}", "ours\n")
    harmless = await held.call("bash", command=f"echo recursive > sub/.git/{place}")
    assert left_by(harmless) == {}
    assert target.read_text() == "recursive\n"
    result = await held.call("bash", command=f"echo '{content}' > sub/.git/{place}")
    assert left_by(result) == {f"sub/.git/{place}": "git"}


@pytest.mark.slow
async def test_what_is_behind_the_first_mebibyte_is_reported(held: SandboxBench) -> None:
    git(held.work / "sub", "init", "-q")
    (held.work / "sub" / ".git" / "rebase-merge").mkdir()
    todo = "sub/.git/rebase-merge/git-rebase-todo"
    held.put("sub/.gitattributes", "")
    result = await held.call(
        "bash",
        command="for f in sub/.gitattributes " + todo + "; do yes '# pick' | head -c 1050000 > $f;"
        " printf '\nexec touch ran\n*.txt filter=mine\n' >> $f; done",
    )
    assert left_by(result) == {"sub/.gitattributes": "git", todo: "git"}


async def test_a_repository_that_existed_is_closed_whatever_its_name(held: SandboxBench) -> None:
    git(held.work / "sub", "init", "-q")
    git(held.work / "sub", "init", "-q", "--bare", "stored")
    before = [held.work / "sub" / name / "config" for name in (".git", "stored")]
    contents = [path.read_bytes() for path in before]
    result = await held.call(
        "bash",
        command="for d in .git stored; do echo x >> sub/$d/config; touch sub/$d/hooks/x; done",
    )
    assert left_by(result) == {}
    assert [path.read_bytes() for path in before] == contents
    assert list((held.work / "sub").rglob("hooks/x")) == []


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("config", "path"),
    [
        ("", "scripts/hook"),
        ("[include]\n\tpath = ../.gitconfig\n", ".githooks/pre-commit"),
        ("[core] hooksPath = .githooks ; ours\n", ".githooks/pre-commit"),
        ("[core]\n\tfsmonitor = sh watch.sh\n", "watch.sh"),
        ("x/y z/" * 300 + "\n[core]\n\tfsmonitor = ./scripts/watch\n", "scripts/watch"),
    ],
)
async def test_programs_that_a_config_leads_to_are_closed(
    held: SandboxBench, config: str, path: str
) -> None:
    git(held.work, "init", "-q")
    held.put(".gitconfig", "[core]\n\thooksPath = .githooks\n")
    with (held.work / ".git" / "config").open("a") as file:
        file.write("".join(f"# a/{number}\n" for number in range(200)) + config)
    hooks = held.work / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    (hooks / "pre-commit").symlink_to("../../scripts/hook")
    target = held.put(path, "ours\n")
    result = await held.call("bash", command=f"echo x >> {path}; rm -f {path}; mv {path} y")
    assert target.read_text() == "ours\n"
    assert result.is_error


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("step", ["exec touch ran", "x touch ran", "merge -C abc topic", "break"])
async def test_a_todo_list_that_holds_more_than_picks_is_reported(
    held: SandboxBench, step: str
) -> None:
    git(held.work / "sub", "init", "-q")
    (held.work / "sub" / ".git" / "rebase-merge").mkdir()
    command = "echo 'pick abc one' > {0}; echo '{1}' >> {0}"
    todo = "sub/.git/rebase-merge/git-rebase-todo"
    result = await held.call("bash", command=command.format(todo, step))
    assert left_by(result) == {todo: "git"}
    harmless = await held.call("bash", command=command.format(todo, "fixup abc two"))
    assert left_by(harmless) == {}


@pytest.mark.slow
async def test_a_rebase_over_two_calls_works_and_is_not_reported(held: SandboxBench) -> None:
    sub = held.work / "sub"
    git(sub, "init", "-q", "-b", "main")
    git(sub, "commit", "-q", "--allow-empty", "-m", "first")
    git(sub, "branch", "topic")
    for branch in ("main", "topic"):
        git(sub, "checkout", "-q", branch)
        (sub / "a.txt").write_text(f"{branch}\n")
        git(sub, "add", "-A")
        git(sub, "commit", "-qm", branch)
    named = "-c user.name=u -c user.email=u@example.org"
    first = await held.call(
        "bash", command=f"cd sub && git {named} rebase main; git status | head -3"
    )
    assert "rebase in progress" in first.text
    second = await held.call(
        "bash",
        command=f"cd sub && echo both > a.txt && git add a.txt"
        f" && GIT_EDITOR=true git {named} rebase --continue && git log --oneline | wc -l",
    )
    assert "Successfully rebased" in second.text
    assert left_by(first) == left_by(second) == {}


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize(
    ("path", "program"),
    [
        ("sub/.envrc", "direnv"),
        ("sub/.vscode/tasks.json", "editors"),
        ("sub/.idea/workspace.xml", "editors"),
        ("sub/.zed/tasks.json", "editors"),
        (".gitconfig", "git"),
        (".config/git/attributes", "git"),
        ("sub/.devcontainer/devcontainer.json", "editors"),
        ("sub/.helix/languages.toml", "editors"),
        ("sub/.husky/pre-commit", "husky"),
        ("sub/mise.toml", "mise"),
        ("sub/mise.local.toml", "mise"),
        ("sub/.config/mise/conf.d/x.toml", "mise"),
        ("sub/lefthook.yaml", "lefthook"),
        ("sub/.config/lefthook.toml", "lefthook"),
        ("sub/.lefthook/pre-commit/x.sh", "lefthook"),
        ("sub/.nvim.lua", "vim"),
        ("sub/.lazygit.yml", "lazygit"),
        ("sub/.hg/hgrc", "Mercurial"),
        ("sub/.jj/repo/config.toml", "Jujutsu"),
        ("sub/.pre-commit-config.yaml", "pre-commit"),
        ("sub/.npmrc", "npm"),
        ("sub/.github/workflows/ci.yml", "GitHub"),
        ("sub/AGENTS.md", "nousd"),
        ("sub/.claude/settings.json", "other agent programs"),
    ],
)
async def test_a_new_file_that_programs_obey_by_its_name_is_reported(
    held: SandboxBench, path: str, program: str
) -> None:
    result = await held.call("bash", command=f"mkdir -p $(dirname {path}) && echo x > {path}")
    (found,) = left_by(result).items()
    assert path.startswith(found[0])
    assert found[1] == program


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "path", ["sub/.npmrc", "sub/.github/workflows/ci.yml", "sub/.zed/tasks.json"]
)
async def test_a_reported_file_can_be_changed_and_the_change_is_reported(
    held: SandboxBench, path: str
) -> None:
    held.put(path, "old\n")
    assert left_by(await held.call("bash", command=f"cat {path}")) == {}
    result = await held.call("bash", command=f"echo new > {path}")
    assert (held.work / path).read_text() == "new\n"
    assert set(left_by(result)) == {path}


@pytest.mark.slow
async def test_a_driver_in_attributes_is_reported(held: SandboxBench) -> None:
    held.put("sub/.gitattributes", "*.bin filter=lfs\n")
    harmless = await held.call("bash", command="echo '*.c text' >> sub/.gitattributes")
    assert left_by(harmless) == {}
    result = await held.call("bash", command="echo '*.c filter=mine' >> sub/.gitattributes")
    assert left_by(result) == {"sub/.gitattributes": "git"}


@pytest.mark.slow
async def test_a_worktree_of_a_repository_is_not_reported_but_its_config_is(
    held: SandboxBench,
) -> None:
    git(held.work / "sub", "init", "-q")
    git(held.work / "sub", "commit", "-q", "--allow-empty", "-m", "one")
    result = await held.call("bash", command="cd sub && git worktree add -q ../tree 2>&1")
    assert left_by(result) == {}
    assert (held.work / "tree" / ".git").is_file()
    result = await held.call(
        "bash", command="echo '[core]' > sub/.git/worktrees/tree/config.worktree"
    )
    if not result.is_error:
        assert left_by(result) == {"sub/.git/worktrees/tree/config.worktree": "git"}


async def test_a_look_that_did_not_reach_everything_says_so(
    held: SandboxBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deny_scan, "SHORT_ENTRIES_MAX", 20)
    monkeypatch.setattr(deny_scan, "ENTRIES_MAX", 20)
    for number in range(30):
        (held.work / "sub" / f"_{number}").mkdir()
    result = await held.call("bash", command="mkdir -p sub/_1/deep && echo x > sub/_1/deep/.envrc")
    assert result.sandbox is not None
    assert result.sandbox.is_left_partial


@pytest.mark.slow
async def test_many_files_are_counted_and_the_first_are_named(held: SandboxBench) -> None:
    result = await held.call(
        "bash", command="for i in $(seq 30); do mkdir sub/$i; echo x > sub/$i/.npmrc; done"
    )
    assert result.sandbox is not None
    assert len(result.sandbox.left) == 20
    assert result.sandbox.is_left_partial


async def test_the_settings_of_another_program_in_a_git_folder_are_reported(
    held: SandboxBench,
) -> None:
    git(held.work / "sub", "init", "-q")
    result = await held.call("bash", command="echo 'git: {}' > sub/.git/lazygit.yml")
    assert left_by(result) == {"sub/.git/lazygit.yml": "lazygit"}


@pytest.mark.slow
async def test_what_a_rule_hides_is_not_named_but_what_a_command_makes_there_is(
    held: SandboxBench,
) -> None:
    (held.work / "sub" / "private").mkdir()
    git(held.work / "sub" / "private", "init", "-q")
    held.put("sub/private/.envrc", "x")
    held.close(reading=[r"(.*/)?private(/.*)?"])
    assert left_by(await held.call("bash", command="echo x > sub/y")) == {}
    result = await held.call(
        "bash", command="mkdir -p sub/new/private && echo x > sub/new/private/.envrc"
    )
    if not result.is_error:
        assert left_by(result) == {"sub/new/private/.envrc": "direnv"}
    assert left_by(await held.call("bash", command="echo x > sub/y")) == {}


async def test_a_fifo_or_link_of_such_a_name_does_not_hold_up_the_look(held: SandboxBench) -> None:
    result = await held.call(
        "bash", command="mkfifo sub/.npmrc sub/.gitattributes; ln -s /dev/zero sub/.envrc"
    )
    assert set(left_by(result)) == {"sub/.npmrc", "sub/.envrc"}


def test_every_name_of_the_table_is_looked_for() -> None:
    names = CHOSEN.names if CHOSEN.obeyed else msgspec.structs.replace(CHOSEN, obeyed=ROWS).names
    for row in ROWS:
        for name in row.names:
            place = f"a/b/{name.replace('*', 'rc')}"
            assert names.are_obeyed(place, os.path.basename(place)), name  # noqa: PTH119
            assert names.are_obeyed(place.upper(), os.path.basename(place).upper())  # noqa: PTH119


@pytest.mark.slow
async def test_a_link_through_which_git_would_write_its_config_is_reported(
    held: SandboxBench,
) -> None:
    sub = held.work / "sub"
    git(sub, "init", "-q")
    git(sub, "commit", "-q", "--allow-empty", "-m", "one")
    lines = f"[core]\n\tfsmonitor = touch {held.work}/{RAN}; false\n"
    (held.work / "text").write_text(lines)
    result = await held.call(
        "bash",
        command="cd sub/.git && cp ../../text MERGE_MSG"
        " && ln -sf config COMMIT_EDITMSG; ln -sf ../config logs/HEAD",
    )
    if held.is_bubblewrap:
        assert left_by(result) == {"sub/.git/COMMIT_EDITMSG": "git", "sub/.git/logs/HEAD": "git"}
        again = await held.call("bash", command="git -C sub status")
        assert left_by(again) == {}
        (sub / ".git/logs/HEAD").unlink()
    else:
        assert left_by(result) == {}
        assert not any(path.is_symlink() for path in (sub / ".git").rglob("*"))
    # What the report warns of: the user's next commit writes through the link.
    git(sub, "-c", "core.editor=true", "commit", "--allow-empty")
    git(sub, "status")
    assert (held.work / RAN).exists() == held.is_bubblewrap
