"""What people do every day in a shell: jobs whose results must not depend on a sandbox.

A job is one shell text or several, which run one after the other in the folder ``src`` of a workspace.
What they print is part of the result, and so are all files that they leave there (``tree_of``). No job
uses a network.
"""

from __future__ import annotations

import fnmatch
import hashlib
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.tools.daily_projects import (
    make_c_project,
    make_crate,
    make_files,
    make_package,
    make_repositories,
    make_wheel,
)
from tests.tools.sandbox_bench import PYTHON

Tree = dict[str, tuple[Any, ...]]
"""Relative path -> kind and mode, content, number of names, time of the last change."""


class Difference(msgspec.Struct, frozen=True):
    """What a sandbox does not allow, on purpose. ``said`` stands in what the job then prints."""

    why: str
    said: str


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table.

    Args:
        calls: shell texts; each is a call of its own.
        programs: without one of these the job cannot be done.
        prepare: makes what the job needs in the workspace, before its first call.
        vary: patterns of files whose contents differ each time, also outside.
        shown: parts of the home folder that the setting ``sandbox_paths`` names.
        differs: backend -> what it does not allow.
    """

    calls: tuple[str, ...]
    programs: tuple[str, ...] = ()
    prepare: Callable[[Path], None] | None = None
    vary: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    differs: Mapping[str, Difference] = {}


DAY: Final = 86400

FOLDERS: Final = ("src", "told")
"""Where jobs work, and where what each call prints goes."""


def tree_of(work: Path, job: Job, *, began: float) -> Tree:
    """Return all files of a job.

    A time of last change long before ``began`` is one that the job has kept or set, and counts.
    """
    found: Tree = {}
    for path in sorted(path for folder in FOLDERS for path in (work / folder).rglob("*")):
        name = str(path.relative_to(work))
        status = path.lstat()
        varies = any(fnmatch.fnmatchcase(name, pattern) for pattern in job.vary)
        kept = status.st_mtime_ns if status.st_mtime < began - DAY else "new"
        found[name] = (
            stat.filemode(status.st_mode),
            "varies" if varies else _content(path, status.st_mode),
            status.st_nlink if stat.S_ISREG(status.st_mode) else 0,
            kept,
        )
    return found


def _content(path: Path, mode: int) -> str:
    if stat.S_ISLNK(mode):
        return str(path.readlink())
    if not stat.S_ISREG(mode):
        return ""
    content = path.read_bytes()
    if len(content) <= 500:
        return content.decode(errors="backslashreplace")
    return f"{len(content)} bytes {hashlib.sha256(content).hexdigest()}"


# --- what jobs are made of --------------------------------------------------------------------

AS_SOMEBODY: Final = """
export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=Ann GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=Ann
export GIT_COMMITTER_EMAIL=a@b GIT_AUTHOR_DATE='1000000000 +0000' GIT_COMMITTER_DATE='1000000000 +0000'
"""
"""The machine's own configuration of git is not visible in a sandbox."""

TWO_BRANCHES: Final = f"""{AS_SOMEBODY}
git init -q -b main one
cd one
mkdir d
echo first > a.txt
echo x > d/x
ln -s a.txt link
printf '#!/bin/sh\\necho runs\\n' > run
chmod +x run
git add -A
git commit -qm first
git branch topic
echo main > a.txt
git commit -qam main
git checkout -q topic
echo topic > a.txt
git commit -qam topic
echo more > more
git add more
git commit -qm more
git log --format='%H %s' --all
"""

CONFIG_STAYS: Final = "a config that was there before the call can make git run programs"

VARY_IN_GIT: Final = ("*.git/index",)
"""An index holds inodes and times."""


def daily_git(repository: str, other: str) -> tuple[str, ...]:
    """Return the calls of a day in a repository that was there before them, with a branch ``topic``.

    Args:
        repository: where it is, seen from ``src``.
        other: a repository to fetch from, seen from the first.
    """
    begin = f"{AS_SOMEBODY} cd {repository}"
    return (
        f"""{begin}
        git status -sb -uno
        git checkout -q topic
        git checkout -q main
        git checkout -q -b mine
        mkdir -p n/m
        echo mine > new
        echo deep > n/m/file
        git add new n
        git commit -qm mine
        sed -i s/mine/more/ new
        git stash
        cat new
        git stash pop -q
        git stash -q
        git stash apply -q
        git stash drop -q
        git commit -qam more
        git tag v1
        git tag -a v2 -m v2
        git mv new moved
        git rm -q n/m/file
        git commit -qm moved
        git checkout -q --detach v1
        git switch -q mine
        git reset -q --hard HEAD~1
        git revert --no-edit HEAD
        cat a.txt new n/m/file""",
        f"""{begin}
        git merge topic || echo stopped with $?
        git merge --abort
        git merge -q -X ours -m joined topic
        git pack-refs --all
        git update-ref -d refs/heads/topic
        git gc -q --prune=now
        git repack -adq
        git fetch -q {other} main:fetched topic:topic
        git cherry-pick v2 -X theirs || git cherry-pick --skip
        git reflog expire --expire=now --all
        git fsck
        git worktree add -q n/tree v1
        git worktree remove n/tree""",
        f"""{begin}
        git checkout -q -b again v1
        echo again > a.txt
        git commit -qam again
        git rebase --onto topic HEAD~1 || echo stopped with $?
        git diff --name-only""",
        f"""{begin}
        echo both > a.txt
        git add a.txt
        GIT_EDITOR=true git rebase --continue
        git bisect start HEAD HEAD~2
        git bisect reset
        git notes add -m note
        git status -sb -uno
        git log --graph --format='%H %s' --all
        git for-each-ref
        git ls-files -s
        cat a.txt""",
    )


# --- the table --------------------------------------------------------------------------------

JOBS: Final[Mapping[str, Job]] = {
    "git init, clone and commit": Job(
        programs=("git",),
        calls=(
            f"""{TWO_BRANCHES}
            cd ..
            git clone one two
            cd two
            git status -sb
            ./run
            git checkout -q -b mine
            sed -i s/topic/mine/ a.txt
            git commit -qam mine
            git tag -a v1 -m v1
            git push -q origin mine v1
            git fsck --strict
            echo y >> d/x
            git stash -q
            git stash pop
            git mv d/x d/y
            git commit -qam moved
            git format-patch -1 --stdout
            git gc -q
            git verify-pack -v .git/objects/pack/*.idx
            git -C ../one branch -a -v""",
        ),
        vary=VARY_IN_GIT,
    ),
    "git commit and merge in a later call": Job(
        programs=("git",),
        calls=(
            TWO_BRANCHES,
            f"""{AS_SOMEBODY} cd one
            echo y > y
            git add y
            git commit -qm y
            git status -sb
            git merge main || echo stopped with $?
            git checkout --theirs a.txt
            git commit -qam merged
            git cherry-pick main~1 --allow-empty --strategy-option=theirs || git cherry-pick --skip
            git log --graph --format='%H %s' --all""",
        ),
        vary=VARY_IN_GIT,
    ),
    "git rebase with conflicts over two calls": Job(
        programs=("git",),
        calls=(
            f"""{TWO_BRANCHES}
            git rebase main || echo stopped with $?
            git status
            cat a.txt""",
            f"""{AS_SOMEBODY} cd one
            git status -s
            echo both > a.txt
            git add a.txt
            GIT_EDITOR=true git rebase --continue
            git log --format='%H %s'
            git status -sb""",
        ),
        vary=VARY_IN_GIT,
    ),
    "git rebase with conflicts of a repository that was there": Job(
        programs=("git",),
        calls=(
            TWO_BRANCHES,
            f"""{AS_SOMEBODY} cd one
            git rebase main || echo stopped with $?
            git status
            git diff""",
            f"""{AS_SOMEBODY} cd one
            echo both > a.txt
            git add a.txt
            GIT_EDITOR=true git rebase --continue
            export GIT_SEQUENCE_EDITOR='sed -i s/pick/reword/' GIT_EDITOR='sed -i 1s/^/again-/'
            git rebase -i HEAD~2
            git log --format='%H %s'""",
            f"""{AS_SOMEBODY} cd one
            git checkout -q -b other HEAD~1
            echo other > more
            git add more
            git commit -qm other
            git rebase topic || echo stopped with $?
            git rebase --abort
            git status -sb
            git reflog""",
        ),
        vary=VARY_IN_GIT,
    ),
    "a day of git in a repository that was there": Job(
        programs=("git",),
        calls=(
            f"{TWO_BRANCHES} git checkout -q main; git clone -q --bare --no-hardlinks . ../two",
            *daily_git("one", "../two"),
        ),
        vary=VARY_IN_GIT,
    ),
    "a day of git in the repository of the workspace": Job(
        programs=("git",),
        prepare=make_repositories,
        calls=daily_git("..", "src/two"),
        vary=VARY_IN_GIT,
    ),
    "git in a worktree that was there": Job(
        programs=("git",),
        calls=(
            f"{TWO_BRANCHES} git worktree add -q ../tree main",
            f"""{AS_SOMEBODY} cd tree
            echo y > y
            git add y
            git commit -qm y
            git merge topic || echo stopped with $?
            echo both > a.txt
            git commit -qam merged
            git stash list
            git -C ../one log --graph --format='%H %s' --all
            git status -sb""",
        ),
        vary=(*VARY_IN_GIT, "*/worktrees/tree/index"),
    ),
    "git config of a repository that was there": Job(
        programs=("git",),
        calls=(TWO_BRANCHES, f"{AS_SOMEBODY} cd one; git remote add origin ../two; git remote"),
        vary=VARY_IN_GIT,
        differs=dict.fromkeys(
            ("bubblewrap", "landlock"), Difference(CONFIG_STAYS, "could not write config file")
        ),
    ),
    "git init at the top of a workspace": Job(
        programs=("git",),
        calls=(f"{AS_SOMEBODY} cd ..; git init -q; git status",),
        differs=dict.fromkeys(
            ("bubblewrap", "landlock"),
            Difference("who enters a workspace runs what its .git says", ".git"),
        ),
    ),
    "gcc and make": Job(
        programs=("gcc", "make", "ar", "strip"),
        prepare=make_c_project,
        calls=(
            "make -j2; make libpart.so; ./prog; make; make install",
            "make; touch part.h; make; ./prog; strip -o small prog; make clean; ls",
        ),
    ),
    "a virtual environment with pip and a local wheel": Job(
        programs=(PYTHON,),
        prepare=make_wheel,
        calls=(
            f"{PYTHON} -m venv v; . v/bin/activate; python -c 'import sys; print(sys.prefix)'",
            """. v/bin/activate
            export PIP_DISABLE_PIP_VERSION_CHECK=1
            pip install --no-index -f wheels demo
            demo
            pip list --format freeze | grep demo
            pip uninstall -y demo
            pip install --quiet --no-index --no-compile wheels/*.whl
            v/bin/demo""",
        ),
        vary=("*.pyc",),
    ),
    "npm with a local tarball": Job(
        programs=("npm", "node"),
        prepare=make_package,
        calls=(
            "(cd demo; npm pack --silent); mv demo/*.tgz .",
            """cd app
            npm install ../demo-1.0.0.tgz --offline --silent --no-audit
            npm run --silent say
            npm ls
            npx --no demo""",
            "cd app; npm ci --offline --silent; npm uninstall --silent demo; ls -A",
        ),
    ),
    "cargo without dependencies": Job(
        programs=("cargo", "cc"),
        prepare=make_crate,
        shown=(".cargo/bin", ".rustup/toolchains", ".rustup/settings.toml"),
        calls=(
            "cargo build --offline --quiet; target/debug/demo; cargo run --offline --quiet",
            "cargo test --offline --quiet | grep '^test result' | cut -d';' -f1; cargo clean -q; ls",
            "cargo build --offline --quiet --release",
        ),
        vary=("src/target/*",),
    ),
    "tar": Job(
        programs=("tar", "gzip"),
        prepare=make_files,
        calls=(
            "tar czf all.tgz from; tar tvzf all.tgz --numeric-owner | tr -s ' ' | cut -d' ' -f1,4-",
            """mkdir p plain piped
            tar xpzf all.tgz -C p
            (umask 027; tar xzf all.tgz -C plain)
            (cd from; tar cf - .) | (cd piped; tar xf - --no-same-permissions)
            tar xzf all.tgz -C plain --keep-old-files || echo ended with $?
            tar df all.tgz
            rm -rf from
            tar xzf all.tgz""",
        ),
        vary=("src/all.tgz",),
    ),
    "cp -p and its kin": Job(
        prepare=make_files,
        calls=(
            """cp -p 'from/d/file 2' kept
            cp 'from/d/file 2' new
            cp -a from copied
            cp -r from plain
            cp -al from linked
            cp -rL --preserve=timestamps from/d followed
            cp --preserve=all 'from/d/file 0' .
            cp -u kept new
            cp -v from/d/* -t copied""",
            """mv copied moved
            mv -f kept new
            cp -p --remove-destination new 'moved/d/file 3'
            rm -r plain""",
        ),
    ),
    "install": Job(
        prepare=make_files,
        calls=(
            """install 'from/d/file 0' a
            install -m 751 a b
            install -m 2751 a c
            install -d -m 2770 d/e
            install -p -D 'from/d/file 1' d/e/f/g
            install -C -m 600 a d/a
            install -b a c
            install -o $(id -u) -g $(id -g) a owned
            install -t d a b""",
        ),
    ),
    "a file that runs as its owner": Job(
        calls=("touch a; chmod 4755 a; install -m 6711 a b",),
        differs=dict.fromkeys(
            ("bubblewrap", "landlock"),
            Difference(
                "such a file would give its user the owner's rights outside", "not permitted"
            ),
        ),
    ),
    "sed -i": Job(
        prepare=make_files,
        calls=(
            """sed -i s/one/1/ from/d/*
            sed -i.bak s/1/eins/ 'from/d/file 2'
            cat from/same
            sed -i --follow-symlinks s/line/row/ from/link
            sed -i s/row/col/ from/link
            sed -i s/x/y/ from/broken || echo ended with $?
            perl -i -pe s/1/2/ 'from/d/file 0'
            grep -rc eins from | sort""",
        ),
    ),
    "touch": Job(
        prepare=make_files,
        calls=(
            """touch new from/d/*
            touch -d @1.5 a
            touch -t 200101010101 b
            touch -r a c
            touch -m -d @77 a
            touch -h -d @5 from/broken
            touch -c nothing
            touch -d @9 from from/link
            stat -c '%n %.2Y' a b c""",
            "touch a; find . -newer a -type f; [ b -ot a ]; touch -a -d @3 b; stat -c '%X %Y' b",
        ),
    ),
    "chmod, mv, ln and mktemp": Job(
        prepare=make_files,
        calls=(
            """chmod -R go=u from
            chmod 1777 from
            chmod g+s from/d
            chmod --reference=from/d from/same
            ln from/same hard
            ln -sf d/y from/link
            ln -sfn d to
            mv -n hard 'from/d/file 1'
            (umask 077; mkdir -p p/q; echo > p/q/r)
            mkfifo -m 600 pipe
            temporary=$(mktemp)
            echo x > $temporary
            mv $temporary moved
            mktemp -d -p . kept.XXX | wc -c
            cp -p moved 'p/q/with space'
            rmdir kept.*
            mv from renamed""",
            """chmod 0 moved
            chmod u+rw moved
            truncate -s 5000 big
            dd if=big of=part bs=1k count=2 status=none
            chown -R $(id -u):$(id -g) renamed""",
        ),
    ),
    "new files at the top of a workspace": Job(
        calls=("cd ..; mkdir new; echo x > file; mv file new/file; rm -r new",),
    ),
}
