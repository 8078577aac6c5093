"""Files in a git folder by which a sandboxed command makes its user's git run a program: the real git
obeys each of them, and each is reported or refused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from nousd.tools.sandbox import git_index, git_traps
from nousd.tools.sandbox.detect import SandboxName
from tests.tools.sandbox_bench import BACKENDS, SandboxBench, show
from tests.tools.test_trap_watch import RAN, bench_of, git, left_by

pytestmark = pytest.mark.slow(keep=1)  # the default suite tries one of the two sandboxes

REPOSITORY = "mkdir -p {0}/objects {0}/refs; cp .git/HEAD {0}/HEAD; cp config {0}/config; "
"""Makes a folder that git takes for a repository, in which every git command runs a program."""


class Trap(NamedTuple):
    """A command that prepares a trap, and what a user does who only looks.

    Args:
        left: the files that are reported.
        look: the words of a git command.
        folder: where it runs.
        has_links: whether it makes links in a git folder, which Landlock refuses.
    """

    command: str
    left: frozenset[str]
    look: Sequence[str] = ("status",)
    folder: str = "sub"
    has_links: bool = False


def trap(command: str, *left: str, **more: object) -> Trap:
    return Trap(command, frozenset(left))._replace(**more)  # type: ignore[arg-type]


def worktree_with(commondir: str, folder: str) -> Trap:
    """Return a worktree whose common directory looks like the usual one and is another."""
    return trap(
        f"mkdir -p .git/worktrees/x; printf '{commondir}' > .git/worktrees/x/commondir;"
        " cp .git/HEAD .git/worktrees/x; echo gitdir: ../.git/worktrees/x > sub/.git;"
        + REPOSITORY.format(f"'.git/worktrees/{folder}'")
        + "mkdir -p '.git/worktrees/x/ ..'",
        *("sub/.git", ".git/worktrees/x/commondir"),
        *([f".git/worktrees/{folder}"] if "/" in folder.rstrip("/") else []),
    )


def git_file(content: str, *before: str, left: Sequence[str] = ()) -> Trap:
    """Return a file ``.git`` that leads elsewhere than its text seems to say."""
    return trap(
        "".join(before) + f"printf '{content}' > sub/.git",
        *("sub/.git", *left),
    )


INDEXED = (
    "i=$(echo '*.txt filter=mine' | git hash-object -w --stdin);"
    " git update-index --add --cacheinfo 100644,$i,.gitattributes; "
)

INNER = REPOSITORY.format(".git/refs/x")
GOOD = "ln -s .git/worktrees/good $'link\\r'; ln -s .git/refs/x link; "

TRAPS = {
    "a blank before the common directory": worktree_with(" ../..", "x"),
    "a blank behind it": worktree_with("../.. ", ".. "),
    "a tab behind it and a line end": worktree_with("../..\\t\\n", "..\t"),
    "a carriage return that git leaves out": git_file(
        "gitdir: ../link\\r\\n", INNER, GOOD, left=(".git/refs/x",)
    ),
    "several of them": git_file(
        "gitdir: ../link\\r\\r\\n\\n", INNER, GOOD.replace("\\r", "\\r\\r"), left=(".git/refs/x",)
    ),
    "a link to a repository in the repository": trap(
        REPOSITORY.format(".git/x") + "ln -s .git/x docs", ".git/x", folder="docs"
    ),
    "a repository among the objects": trap(
        REPOSITORY.format(".git/objects/ab/x") + "ln -s .git/objects/ab/x docs",
        ".git/objects/ab/x",
        folder="docs",
    ),
    "a repository deep in the repository": trap(
        REPOSITORY.format(".git/a/b/c/d") + "ln -s .git/a/b/c/d docs",
        ".git/a/b/c/d",
        folder="docs",
    ),
    "attributes behind a link": trap(
        "mkdir -p .git/info; echo '*.txt filter=mine' > attributes;"
        " ln -sf ../../attributes .git/info/attributes; touch -d 2001-01-01 a.txt",
        ".git/info/attributes",
        folder=".",
        has_links=True,
    ),
    "all information behind a link": trap(
        "mkdir info; echo '*.txt filter=mine' > info/attributes; rm -rf .git/info;"
        " ln -s ../info .git/info; touch -d 2001-01-01 a.txt",
        ".git/info",
        folder=".",
        has_links=True,
    ),
    "attributes in the index only": trap(
        INDEXED + "touch -d 2001-01-01 a.txt", ".git/index", folder="."
    ),
    "attributes in an index of another version": trap(
        INDEXED + "git update-index --index-version 4; touch -d 2001-01-01 a.txt",
        ".git/index",
        folder=".",
    ),
    "attributes in the index and a link in the work tree": trap(
        INDEXED + "ln -s a.txt .gitattributes; touch -d 2001-01-01 a.txt",
        *(".git/index", ".gitattributes"),
        folder=".",
    ),
    "attributes in the index of a worktree": trap(
        "cd good; git reset -q --hard main; " + INDEXED + "touch -d 2001-01-01 a.txt",
        ".git/worktrees/good/index",
        folder="good",
    ),
    "a merge program whose name begins with an option's": trap(
        "mkdir git-merge-x=; printf '#!/bin/sh\\ntouch {place}/ran-on-the-host\\n' > evil;"
        " chmod +x evil; git rebase -q main topic; echo both > a.txt; git add a.txt;"
        " echo x=/../evil > .git/rebase-merge/strategy",
        ".git/rebase-merge/strategy",
        look=("-c", "core.editor=true", "rebase", "--continue"),
        folder=".",
    ),
    "a program in the todo list of a rebase": trap(
        "git rebase -q main topic; echo both > a.txt; git add a.txt;"
        " sed -i '1i exec touch {place}/ran-on-the-host' .git/rebase-merge/git-rebase-todo",
        ".git/rebase-merge/git-rebase-todo",
        look=("-c", "core.editor=true", "rebase", "--continue"),
        folder=".",
    ),
}


RUN = "touch {place}/ran-on-the-host"

HARMLESS = {
    "a remote in the old form": trap(
        f"mkdir -p .git/remotes; printf 'URL: ext::{RUN}\\nPull: main\\n' > .git/remotes/origin",
        look=("fetch", "origin"),
    ),
    "a branch in the oldest form": trap(
        f"mkdir -p .git/branches; echo 'ext::{RUN}' > .git/branches/origin",
        look=("fetch", "origin"),
    ),
    "another repository's objects": trap(
        "mkdir -p evil/objects/info; echo '|touch {place}/ran-on-the-host' > evil/objects/info/packs;"
        " mkdir -p .git/objects/info; echo {place}/evil/objects > .git/objects/info/alternates",
        look=("log", "--stat"),
    ),
    "a ref that leads to a hook": trap(
        "git rev-parse HEAD > .git/x; echo 'ref: refs/heads/../../hooks/post-commit' > .git/HEAD",
        look=("commit", "--allow-empty", "-qm", "x"),
    ),
    "a packed ref that leads to a hook": trap(
        'echo "$(git rev-parse HEAD) refs/heads/../../hooks/post-commit" >> .git/packed-refs',
        look=("pack-refs", "--all"),
    ),
    "a message that looks like a program": trap(
        f"printf '#!/bin/sh\\n{RUN}\\n' | tee .git/MERGE_MSG .git/SQUASH_MSG > .git/COMMIT_EDITMSG;"
        " chmod +x .git/*_MSG .git/COMMIT_EDITMSG",
        look=("-c", "core.editor=true", "commit", "--allow-empty"),
    ),
    "the log of a bisection": trap(
        f"echo main > .git/BISECT_START; echo 'git bisect run {RUN}' > .git/BISECT_LOG;"
        f" echo '{RUN}' > .git/BISECT_RUN; : > .git/BISECT_NAMES",
        look=("bisect", "log"),
    ),
    "a sparse checkout": trap(
        f"mkdir -p .git/info; printf '/*\\n!{RUN}\\n' > .git/info/sparse-checkout",
        look=("read-tree", "-mu", "HEAD"),
    ),
    "patterns that are ignored": trap(
        f"mkdir -p .git/info; echo '$({RUN})' >> .git/info/exclude; echo '`{RUN}`' > .gitignore"
    ),
    "a name of a file": trap(
        "touch -- '$(touch ran-on-the-host)' '--upload-pack=touch ran-on-the-host' '|touch x'",
        look=("add", "-A"),
    ),
    "a name of a branch": trap(
        "git checkout -q -b 'x;touch${IFS}ran-on-the-host' || git checkout -q -b"
        " 'x;touch\u00a0ran-on-the-host'",
        look=("branch", "-vv"),
    ),
    "a name of an author": trap(
        f"git -c 'user.name=$({RUN})' -c 'user.email=`{RUN}`' commit -q --allow-empty -m '$({RUN})'",
        look=("log", "--format=%an %ae %s"),
    ),
    "a script of an author": trap(
        "git rebase -q main topic; echo both > a.txt; git add a.txt;"
        f" echo '{RUN}' >> .git/rebase-merge/author-script",
        look=("-c", "core.editor=true", "rebase", "--continue"),
    ),
    "a command of a submodule": trap(
        'cd good; printf \'[submodule "s"]\\n\\tpath = s\\n\\turl = {place}\\n\\tupdate = !touch'
        " ran-on-the-host\\n' > .gitmodules;"
        " git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),s",
        "good/.gitmodules",
        look=("-C", "good", "submodule", "update", "--init"),
    ),
    "a replaced object and a graft": trap(
        "mkdir -p .git/refs/replace .git/info; git rev-parse HEAD >"
        " .git/refs/replace/$(git rev-parse HEAD~1); git rev-parse HEAD > .git/info/grafts",
        look=("log", "--stat"),
    ),
    "a todo list of picks with odd blanks": trap(
        "git rebase -q main topic; echo both > a.txt; git add a.txt;"
        " printf '\\v exec touch ran-on-the-host\\n\\xc2\\xa0exec touch ran-on-the-host\\n' >>"
        " .git/rebase-merge/git-rebase-todo",
        ".git/rebase-merge/git-rebase-todo",
        look=("-c", "core.editor=true", "rebase", "--continue"),
    ),
}
"""What git reads of a repository and takes for no program, whatever stands there: one day it may."""


@pytest.fixture(params=BACKENDS)
def held(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SandboxBench:
    """A sandbox as the daemon sets it up, around a repository of a user who has a filter."""
    bench = bench_of(request.param, tmp_path, monkeypatch)
    make_repository(bench.work)
    return bench


def make_repository(folder: Path) -> None:
    """Make a repository with a worktree, and two branches whose commits conflict."""
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "filter.mine.clean", f"touch {folder}/{RAN}; cat")
    git(folder, "config", "user.name", "u")
    git(folder, "config", "user.email", "u@example.org")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    git(folder, "worktree", "add", "-q", "good")
    git(folder, "branch", "topic")
    for branch in ("topic", "main"):
        git(folder, "checkout", "-q", branch)
        for name in ("a.txt", "b.txt"):
            (folder / name).write_text(f"{branch}\n")
            git(folder, "add", name)
            git(folder, "commit", "-qm", f"{name} of {branch}")
    (folder / "config").write_text(
        "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
        f"\tworktree = {folder}/sub\n\tfsmonitor = touch {folder}/{RAN}; false\n"
    )


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("made", TRAPS.values(), ids=TRAPS)
async def test_a_trap_in_a_repository_is_reported_and_git_would_obey_it(
    held: SandboxBench, made: Trap
) -> None:
    result = await held.call("bash", command=made.command.replace("{place}", str(held.work)))
    if made.has_links and not held.is_bubblewrap:
        assert left_by(result) == {}
        assert not any(path.is_symlink() for path in (held.work / ".git").rglob("*"))
        return
    assert left_by(result) == dict.fromkeys(made.left, "git")
    show(git(held.work / made.folder, *made.look))
    assert (held.work / RAN).exists()
    again = await held.call("bash", command="true")
    assert left_by(again) == {}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("made", HARMLESS.values(), ids=HARMLESS)
async def test_what_else_git_reads_runs_nothing(held: SandboxBench, made: Trap) -> None:
    result = await held.call("bash", command=made.command.replace("{place}", str(held.work)))
    assert set(left_by(result)) == made.left
    for words in (made.look, ("status",), ("diff",)):
        show(git(held.work, *words))
    assert list(held.work.rglob(RAN)) == []
    # The test can fail: a filter runs with the same words.
    (held.work / "b.txt").write_text("x\n")
    (held.work / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    held.put(".git/info/attributes", "*.txt filter=mine\n")
    git(held.work, "diff")
    assert (held.work / RAN).exists()


REMEMBERED = r"""
printf '[core]\n\tfsmonitor = touch {place}/{ran}\n[a]\n\tb = \\\n' > top
for branch in topic main; do
    git checkout -q $branch && { cat top; printf "\t$branch = \\\\\n"; } > c.txt
    git add c.txt && git commit -qm "c.txt of $branch"
done
mkdir .git/rr-cache
going() { echo both > $1; git add $1; git -c core.editor=true rebase --continue; }
old=$(git rev-parse topic)
git rebase main topic; going a.txt; going b.txt; id=$(ls -t .git/rr-cache | head -1); going c.txt
git reset -q --hard $old
git rebase main topic; going a.txt; rm -f .git/rr-cache/$id/thisimage
ln -s ../../config .git/rr-cache/$id/thisimage; ls -l .git/rr-cache/$id
"""
"""Stops a rebase before its last commit. Git compares the conflict of that with the one that it
remembers, by a file that is a link now.
"""


@pytest.mark.slow
async def test_a_link_through_which_git_would_write_a_conflict_is_reported(
    held: SandboxBench,
) -> None:
    command = REMEMBERED.replace("{place}", str(held.work)).replace("{ran}", RAN)
    result = await held.call("bash", command=command)
    links = [path for path in (held.work / ".git").rglob("thisimage") if path.is_symlink()]
    assert set(left_by(result)) == {str(path.relative_to(held.work)) for path in links}
    assert len(links) == (1 if held.is_bubblewrap else 0)
    # What the report warns of: the user goes on with the rebase, and looks.
    (held.work / "b.txt").write_text("both\n")
    git(held.work, "add", "b.txt")
    show(git(held.work, "-c", "core.editor=true", "rebase", "--continue"))
    show(git(held.work, "status"))
    assert (held.work / RAN).exists() == held.is_bubblewrap


OUTSIDE = {
    "a todo list": "mkdir -p {own}/rebase-merge; echo 'exec x' > {own}/rebase-merge/git-rebase-todo",
    "attributes": "mkdir -p {common}/info; echo '*.txt filter=mine' > {common}/info/attributes",
    "a repository": "mkdir -p {common}/x/objects {common}/x/refs; cp {own}/HEAD {common}/x",
}


@pytest.mark.slow
@pytest.mark.parametrize("command", OUTSIDE.values(), ids=OUTSIDE)
@pytest.mark.parametrize("name", BACKENDS)
async def test_traps_in_the_repository_of_a_worktree_are_reported_though_it_lies_outside(
    name: SandboxName, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = tmp_path / "main"
    main.mkdir()
    make_repository(main)
    git(main, "worktree", "add", "-q", str(tmp_path / "work"))
    held = bench_of(name, tmp_path, monkeypatch)
    common = main / ".git"
    own = common / "worktrees" / "work"
    result = await held.call("bash", command=command.format(own=own, common=common))
    (left,) = left_by(result)
    assert left.startswith(f"{common}/")
    assert left_by(await held.call("bash", command="git status")) == {}


async def test_a_flood_of_files_hides_no_link_without_saying_so(
    held: SandboxBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which entries a folder lists first, a command can find out."""
    (held.work / ".git" / "there").symlink_to("config")
    assert left_by(await held.call("bash", command="true")) == {}
    monkeypatch.setattr(git_traps, "ENTRIES_MAX", 300)
    result = await held.call("bash", command="touch .git/{1..400}; ln -s config .git/x || true")
    assert result.sandbox is not None
    assert result.sandbox.is_left_partial


@pytest.mark.slow
async def test_a_folder_that_can_only_be_entered_is_reported(held: SandboxBench) -> None:
    """Nobody but root can list it, but git, direnv and editors look for names."""
    result = await held.call(
        "bash", command="mkdir sub/x; touch sub/x/.envrc; chmod 111 sub/x; ls -ld sub/x"
    )
    if os.geteuid() == 0:
        assert left_by(result) == {"sub/x/.envrc": "direnv"}
    else:
        assert left_by(result) == {"sub/x": "git"}
    assert left_by(await held.call("bash", command="true")) == {}
    (held.work / "sub" / "x").chmod(0o755)


@pytest.mark.slow
async def test_attributes_in_a_shared_part_of_an_index_are_reported(held: SandboxBench) -> None:
    result = await held.call("bash", command=INDEXED + "git update-index --split-index")
    shared = [f".git/{path.name}" for path in (held.work / ".git").glob("sharedindex.*")]
    assert set(shared) <= set(left_by(result))
    assert len(shared) == 1


@pytest.mark.slow
@pytest.mark.parametrize("line", ["*.txt m", '"*.txt"filter=mine'])
async def test_attributes_that_use_a_macro_defined_elsewhere_are_reported(
    held: SandboxBench, line: str
) -> None:
    held.put(".git/info/attributes", "[attr]m filter=mine\n")
    held.put("sub/a.txt", "x\n")
    git(held.work, "add", "sub")
    result = await held.call("bash", command="echo '*.c text linguist-vendored' > .gitattributes")
    assert left_by(result) == {}
    held.put("line", f"{line}\n")
    result = await held.call("bash", command="cp line sub/.gitattributes; echo y > sub/a.txt")
    assert left_by(result) == {"sub/.gitattributes": "git"}
    assert not (held.work / RAN).exists()
    git(held.work, "diff")
    assert (held.work / RAN).exists()


@pytest.mark.slow
async def test_attributes_that_the_work_tree_has_are_judged_there(held: SandboxBench) -> None:
    result = await held.call(
        "bash",
        command="echo '*.c text' > .gitattributes; git add .gitattributes; git commit -qm x;"
        " git update-index --index-version 4; git add -A",
    )
    assert left_by(result) == {}
    result = await held.call("bash", command="git mv .gitattributes sub; git status")
    assert left_by(result) == {}
    result = await held.call("bash", command="rm sub/.gitattributes")
    assert left_by(result) == {".git/index": "git"}


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3, 4])
def test_an_index_is_read_as_git_wrote_it(version: int, tmp_path: Path) -> None:
    make_repository(tmp_path)
    paths = {".gitattributes", "a/.gitattributes", f"{'deep/' * 300}.gitattributes"}
    for path in (*paths, *(f"a/{number}/file{'x' * (number % 200)}" for number in range(300))):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
        (tmp_path / path).with_name("x.gitattributes").touch()
    git(tmp_path, "add", "-A")
    git(tmp_path, "update-index", "--index-version", str(version))
    if version == 3:
        git(tmp_path, "update-index", "--skip-worktree", "a/.gitattributes", "a.txt")
    index = tmp_path / ".git" / "index"
    assert index.read_bytes()[7] == version
    found = git_index.attributes_in(index, is_sha256=False)
    assert found is not None
    assert {path.decode() for path, _ in found} == paths
    listed = git(tmp_path, "ls-files", "-s", *paths)
    assert {content.hex() for _, content in found} == {
        line.split()[1] for line in listed.splitlines()
    }
    index.write_bytes(index.read_bytes()[:-4000])
    assert git_index.attributes_in(index, is_sha256=False) is None
