"""Commands in Landlock's sandbox that attack what is closed, where they may make entries beside it."""

from __future__ import annotations

import ast
import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.tools.bench import REPOSITORY
from tests.tools.landlock_bench import REFUSED, Repositories, repositories_in


@pytest.fixture
def held(tmp_path: Path) -> Repositories:
    return repositories_in(tmp_path / "machine")


def assert_refused(held: Repositories, outcomes: Mapping[str, object], *, least: int) -> None:
    assert len(outcomes) >= least
    assert {what: got for what, got in outcomes.items() if got not in REFUSED} == {}
    held.assert_unchanged()


EVERY_FORM = """
open("own", "w").close()
os.mkdir("empty")
guarded = ["AGENTS.md", ".nousd"]
for top in ("", "sub/"):
    guarded += [top + ".git/" + name for name in (
        "config", "hooks", "hooks/post-commit", "hooks/new", "config.worktree", "commondir", "modules",
        "modules/m", "CONFIG", "Hooks", "config\\u200c.worktree", "COMMONDIR", "common\\u00addir"
    )]
    guarded.append(top + ".git")
guarded += ["agents.md", "Agents.MD", "opencode.jsonc", "OPENCODE.json"]
os.mkdir(".GIT")
guarded += [".GIT/config", ".GIT/new"]
def spellings(name):
    path = os.fsencode(name)
    full = os.getcwdb() + b"/" + path
    yield HERE, path
    yield HERE, full
    yield HERE, b"src/../" + path
    yield HERE, b"../../" * 20 + full[1:]
    yield HERE, b"/proc/self/cwd/" + path
    yield HERE, b"/proc/self/root" + full
    above, _, last = path.rpartition(b"/")
    if os.path.isdir(above or b"."):
        yield os.open(above or b".", os.O_PATH), last
        yield os.open(above or b".", os.O_RDONLY), b"./" + last
for name in guarded:
    is_folder = os.path.isdir(name)
    for number, (start, path) in enumerate(spellings(name)):
        what = f"{name} {number}"
        if not is_folder:
            for flags in (0o1, 0o2, 0o1001, 0o101, 0o301, 0o2001, 0o400001):
                if flags != 0o301 or not os.path.lexists(name):
                    attempt(f"open {what} {flags:o}", "openat", start, path, flags, 0o755)
            if start == HERE:
                attempt(f"creat {what}", "creat", path, 0o755)
                attempt(f"truncate {what}", "truncate", path, 0)
            attempt(f"unlink {what}", "unlinkat", start, path, 0)
        if not os.path.lexists(name):
            attempt(f"mkdir {what}", "mkdirat", start, path, 0o755)
            attempt(f"mknod {what}", "mknodat", start, path, 0o100755, 0)
            attempt(f"symlink {what}", "symlinkat", b"own", start, path)
            attempt(f"link to {what}", "linkat", HERE, b"own", start, path, 0)
        attempt(f"rmdir {what}", "unlinkat", start, path, 0x200)
        attempt(f"mode {what}", "fchmodat", start, path, 0o777)
        attempt(f"times {what}", "utimensat", start, path, old, 0)
        attempt(f"away {what}", "renameat2", start, path, HERE, b"away", 0)
        attempt(f"away below {what}", "renameat2", start, path, HERE, b"src/away", 0)
        attempt(f"over {what}", "renameat2", HERE, b"own", start, path, 0)
        attempt(f"folder over {what}", "renameat2", HERE, b"empty", start, path, 0)
        attempt(f"exchanged {what}", "renameat2", HERE, b"own", start, path, 2)
        attempt(f"exchanged back {what}", "renameat2", start, path, HERE, b"empty", 2)
        attempt(f"another name {what}", "linkat", start, path, HERE, b"another", 0)
        attempt(f"another below {what}", "linkat", start, path, HERE, b"src/another", 0)
        if start not in (HERE,):
            os.close(start)
"""

ERRORS_OF_OTHER_KINDS = {
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.EPERM,
}


@pytest.mark.slow
def test_no_form_and_no_spelling_of_a_call_reaches_what_is_closed(held: Repositories) -> None:
    outcomes = held.attack(EVERY_FORM)
    assert len(outcomes) > 2000
    wrong = REFUSED | ERRORS_OF_OTHER_KINDS
    assert {what: got for what, got in outcomes.items() if got not in wrong} == {}
    held.assert_unchanged()
    assert not os.path.lexists(held.work / ".nousd")


LINKS = """
def inside(make):
    make()
def moved(name, target):
    os.symlink(target, "moved")
    try:
        os.rename("moved", name)
    finally:
        if os.path.lexists("moved"):
            os.remove("moved")
for top in (".git", "sub/.git"):
    for name, target in (
        ("COMMIT_EDITMSG2", "config"), ("x", ".."), ("logs/HEAD2", "../config"), ("refs/x", "../hooks"),
        ("objects/x", "/etc"), ("new", "hooks/post-commit"),
    ):
        tried(f"a link {top}/{name}", lambda: os.symlink(target, f"{top}/{name}"))
        tried(f"moved to {top}/{name}", lambda: moved(f"{top}/{name}", target))
        os.mkdir("folder")
        os.symlink(target, "folder/x")
        tried(f"in a folder to {top}/{name}", lambda: os.rename("folder", f"{top}/{name}"))
        tried(f"another name of one {top}/{name}", lambda: os.link(
            "folder/x", f"{top}/{name}", follow_symlinks=False))
        os.remove("folder/x"), os.rmdir("folder")
        os.mkdir("src/folder")
        os.symlink(target, "src/folder/x")
        tried(f"in a folder below {top}/{name}", lambda: os.rename("src/folder", f"{top}/{name}"))
        os.remove("src/folder/x"), os.rmdir("src/folder")
    os.rename(f"{top}/refs", f"{top}/old")
    tried(f"refs of {top}", lambda: os.symlink("..", f"{top}/refs"))
    tried(f"refs of {top} moved", lambda: moved(f"{top}/refs", ".."))
    os.mkdir("folder")
    os.symlink("..", "folder/x")
    tried(f"exchanged with {top}", lambda: call(
        "renameat2", HERE, b"folder", HERE, os.fsencode(top) + b"/old", 2))
    tried(f"exchanged from {top}", lambda: call(
        "renameat2", HERE, os.fsencode(top) + b"/old", HERE, b"folder", 2))
    os.remove("folder/x"), os.rmdir("folder")
    os.rename(f"{top}/old", f"{top}/refs")
"""


@pytest.mark.slow
def test_a_git_folder_gets_no_links_and_no_folder_that_may_hold_some(held: Repositories) -> None:
    """Git writes messages and logs that a command prepares, and would write them through a link."""
    outcomes = held.attack(LINKS)
    assert_refused(held, outcomes, least=60)
    for git in (held.work / ".git", held.work / "sub" / ".git"):
        assert [path for path in git.rglob("*") if path.is_symlink()] == []


THROUGH_LINKS = """
os.symlink(".git/config", "to-config")
os.symlink(".git/hooks", "to-hooks")
os.symlink(".git", "to-git")
os.symlink("to-git/../to-git/hooks/new", "to-new")
os.symlink(os.getcwd() + "/sub/.git/config", "src/to-config")
os.symlink("../.git/hooks", "src/to-hooks")
os.mkdir("folder")
os.symlink("../.git", "folder/to-git")
os.symlink("/proc/self/cwd/.git/config", "magic")
for name in ("to-config", "to-hooks/post-commit", "to-hooks/new", "to-git/config", "to-git/hooks/new",
             "to-new", "src/to-config", "src/to-hooks/new", "folder/to-git/config",
             "to-hooks/../config", "src/to-hooks/../config", "src/to-hooks/../hooks/new",
             "folder/to-git/refs/../config", "magic", "to-git/commondir", "sub/../to-git/modules"):
    for flags in (os.O_WRONLY, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_APPEND):
        tried(f"{name} {flags}", lambda: os.open(name, flags))
    attempt(f"truncate {name}", "truncate", os.fsencode(name), 0)
for name in ("to-hooks/post-commit", "to-git/config", "to-git/hooks", "src/to-hooks/../config"):
    tried(f"away {name}", lambda: os.rename(name, "away"))
    tried(f"onto {name}", lambda: os.rename("a.txt", name))
    tried(f"remove {name}", lambda: os.remove(name))
    tried(f"name of {name}", lambda: os.link(name, "another"))
tried("name of what a link leads to", lambda: os.link("to-config", "another", follow_symlinks=True))
attempt("the same", "linkat", HERE, b"to-config", HERE, b"another", 0x400)
file = os.open(".git/config", os.O_RDONLY)
for place in (f"/proc/self/fd/{file}", f"/dev/fd/{file}", f"/proc/{os.getpid()}/fd/{file}"):
    tried(f"again {place}", lambda: os.open(place, os.O_WRONLY))
    attempt(f"name of {place}", "linkat", HERE, os.fsencode(place), HERE, b"another", 0x400)
attempt("name of a descriptor", "linkat", file, b"", HERE, b"another", 0x1000)
folder = os.open(".git/hooks", os.O_RDONLY)
for place in (f"/proc/self/fd/{folder}", f"/proc/self/fd/{folder}/../hooks"):
    tried(f"below {place}", lambda: os.open(place + "/new", os.O_CREAT | os.O_WRONLY))
attempt("by a descriptor of hooks", "openat", folder, b"new", 0o101, 0o755)
attempt("above a descriptor of hooks", "openat", folder, b"../config", 0o1001, 0o755)
"""


@pytest.mark.slow
def test_no_link_and_no_descriptor_leads_to_what_is_closed(held: Repositories) -> None:
    assert_refused(held, held.attack(THROUGH_LINKS), least=80)


OUTSIDE = """
kept = os.path.realpath("../kept")
folder = os.open(kept, os.O_PATH)
os.symlink(kept, "to-kept")
os.symlink(kept + "/file", "to-file")
os.rename("a.txt", "b.txt")
for name in (kept + "/file", kept + "/new", "../kept/new", "to-kept/new", "to-file",
             "src/../../kept/new"):
    tried(f"open {name}", lambda: os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC))
    tried(f"onto {name}", lambda: os.rename("b.txt", name) if name != "to-file" else os.open(name, 1))
    tried(f"link {name}", lambda: os.link(kept + "/file", "another"))
attempt("by a descriptor", "openat", folder, b"new", 0o101, 0o644)
attempt("moved out", "renameat2", HERE, b"b.txt", folder, b"new", 0)
attempt("moved in", "renameat2", folder, b"file", HERE, b"new", 0)
attempt("linked in", "linkat", folder, b"file", HERE, b"new", 0)
attempt("linked out", "linkat", HERE, b"b.txt", folder, b"new", 0)
attempt("removed", "unlinkat", folder, b"file", 0)
attempt("folder", "mkdirat", folder, b"new", 0o755)
attempt("link", "symlinkat", b"x", folder, b"new")
attempt("up", "openat", os.open("src", os.O_PATH), b"../../kept/new", 0o101, 0o644)
for name in ("/usr/bin/env", "/etc/passwd"):
    tried(f"a name for {name}", lambda: os.link(name, "program"))
    tried(f"write {name}", lambda: os.open(name, os.O_WRONLY))
"""


@pytest.mark.slow
def test_nothing_leads_out_of_the_workspace_or_into_it(held: Repositories) -> None:
    assert_refused(held, held.attack(OUTSIDE), least=30)
    assert not (held.work / "new").exists()


def test_another_name_of_a_closed_file_that_no_search_has_found_is_known_by_its_inode(
    held: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("another", ".git/another", "sub/another")
    for name in names:
        os.link(held.work / ".git" / "config", held.work / name)
    monkeypatch.setattr("nousd.tools.sandbox.visible_paths.SHORT_ENTRIES_MAX", 1)
    outcomes = held.attack(f"""
for name in {names}:
    for flags in (os.O_WRONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_TRUNC):
        tried(f"open {{name}} {{flags}}", lambda: os.open(name, flags))
    attempt(f"truncate {{name}}", "truncate", os.fsencode(name), 0)
    tried(f"moved {{name}}", lambda: os.rename(name, "moved"))
    tried(f"moved below {{name}}", lambda: os.rename(name, "src/moved"))
    tried(f"linked {{name}}", lambda: os.link(name, "linked"))
    tried(f"removed {{name}}", lambda: os.remove(name))
    attempt(f"mode of {{name}}", "fchmodat", HERE, os.fsencode(name), 0o777)
""")
    assert_refused(held, outcomes, least=27)


WAYS = """
def made(*names):
    os.makedirs("made")
    for name in names:
        os.makedirs("made/" + name)
def cleared():
    import shutil
    shutil.rmtree("made", ignore_errors=True)
for way, inner in ((".github", "instructions"), ("tools", "hooks"), (".GitHub", "instructions")):
    made(inner)
    tried(f"moved to {way}", lambda: os.rename("made", way))
    tried(f"linked as {way}", lambda: os.symlink("made", way))
    cleared()
    os.mkdir(way)
    tried(f"made in {way}", lambda: os.mkdir(f"{way}/{inner}"))
    made()
    tried(f"moved into {way}", lambda: os.rename("made", f"{way}/{inner}"))
    tried(f"linked into {way}", lambda: os.symlink("made", f"{way}/{inner}"))
    tried(f"linked into {way} by another case", lambda: os.symlink("made", f"{way}/{inner.upper()}"))
    cleared()
    made(inner)
    tried(f"exchanged with {way}", lambda: call(
        "renameat2", HERE, b"made", HERE, os.fsencode(way), 2))
    cleared()
    os.rmdir(way)
made("x")
tried("over the workspace's sub", lambda: call("renameat2", HERE, b"made", HERE, b"sub", 2))
tried("sub moved", lambda: os.rename("sub", "sub2"))
tried("sub moved below", lambda: os.rename("sub", "src/sub"))
tried("sub removed", lambda: os.rmdir("sub"))
cleared()
"""


@pytest.mark.slow
def test_nothing_is_moved_onto_the_way_to_a_closed_name(held: Repositories) -> None:
    held.git(held.work, "config", "core.hooksPath", "tools/hooks")
    outcomes = Repositories.attack(held, WAYS)
    assert len(outcomes) == 25
    wrong = REFUSED | {errno.ENOTEMPTY}
    assert {what: got for what, got in outcomes.items() if got not in wrong} == {}


IN_A_NAMESPACE = """
import ctypes, os, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
def mount(source, place, flags):
    if libc.mount(source, os.fsencode(place), None, flags, None) != 0:
        raise OSError(ctypes.get_errno(), "mount")
assert libc.unshare(0x20000) == 0
mount(None, "/", 0x4000 | 1 << 18)
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from tests.tools import landlock_bench
held = object.__new__(landlock_bench.Repositories)
held.root, held.work = Path(sys.argv[1]), Path(sys.argv[1], "work")
"""

BOUND = """
shown = os.path.join(sys.argv[1], "shown")
mount(os.fsencode(held.work / ".git"), shown, 0x1000)
print(held.attack(f'''
for name in ("config", "new", "hooks/new", "refs/../config"):
    tried("open " + name, lambda: os.open({shown!r} + "/" + name, os.O_CREAT | os.O_WRONLY))
tried("mkdir", lambda: os.mkdir({shown!r} + "/new"))
tried("moved", lambda: os.rename("a.txt", {shown!r} + "/new"))
tried("the real one", lambda: os.open(".git/new", os.O_CREAT | os.O_WRONLY))
'''))
"""

BOUND_MEANWHILE = """
for name in ("ready", "go"):
    os.mkfifo(held.work / name)
def bind():
    (held.work / "ready").read_bytes()
    mount(os.fsencode(held.root / "kept"), held.work / "made", 0x1000)
    (held.work / "go").write_bytes(b"")
thread = threading.Thread(target=bind)
thread.start()
print(held.attack('''
os.mkdir("made")
tried("the real one", lambda: os.close(os.open("made/mine", os.O_CREAT | os.O_WRONLY)))
os.close(os.open("ready", os.O_WRONLY))
open("go").read()
assert os.listdir("made") == ["file"]
for name in ("file", "new", "../made/new"):
    tried("open " + name, lambda: os.open("made/" + name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC))
tried("mkdir", lambda: os.mkdir("made/new"))
tried("moved", lambda: os.rename("a.txt", "made/new"))
tried("removed", lambda: os.remove("made/file"))
attempt("mode", "fchmodat", HERE, b"made/file", 0o777)
'''))
thread.join()
"""


@pytest.mark.parametrize("script", [BOUND, BOUND_MEANWHILE], ids=["elsewhere", "meanwhile"])
@pytest.mark.slow
def test_another_mount_of_a_folder_gives_nothing(script: str, held: Repositories) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    ended = subprocess.run(
        [sys.executable, "-c", IN_A_NAMESPACE + script, str(held.root), str(REPOSITORY)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    outcomes = ast.literal_eval(ended.stdout.splitlines()[-1])
    assert outcomes.pop("the real one") == "done"
    assert_refused(held, outcomes, least=6)


ANYTHING = """
import random
choose = random.Random(seed)
kept = os.path.realpath("../kept")
names = [
    *("a.txt", "new", "src", "sub", ".git", "hooks", "config", "refs", "logs", "HEAD", "x", "..", "."),
    *("modules", "commondir", "config.worktree", ".github", "instructions", "AGENTS.md", "agents.md"),
    *("post-commit", "COMMIT_EDITMSG", "objects", "HOOKS", ".GIT", "worktrees", ".nousd", "y"),
]
targets = [".git/config", "..", ".git/hooks", "../.git/config", kept, "hooks", "config", "src", "../.."]
targets += [kept + "/file", "/proc/self/cwd/.git", "sub/.git"]
folders = []
def path():
    several = choose.choice((1, 1, 1, 2, 2, 2, 3, 3, 4))
    found = "/".join(choose.choice(names) for _ in range(several))
    before = choose.choice(("", "", "", "", "", "", "", "", os.getcwd() + "/", "/proc/self/cwd/"))
    return os.fsencode(before + found + choose.choice(("", "", "", "", "/")))
def start():
    return choose.choice(folders) if folders and choose.random() < 0.3 else HERE
def write():
    flags = choose.choice((1, 2, 0o101, 0o1101, 0o301, 0o2101, 0o400101, 0o1001))
    file = call("openat", start(), path(), flags, 0o755)
    os.write(file, b"attack")
    os.close(file)
def open_folder():
    folders.append(os.open(path(), os.O_PATH))
    if len(folders) > 20:
        os.close(folders.pop(choose.randrange(20)))
rename = lambda: call("renameat2", start(), path(), start(), path(), 0)
calls = [write] * 4 + [rename] * 3 + [open_folder]
calls += [
    lambda: call("renameat2", start(), path(), start(), path(), 2),
    lambda: call("mkdirat", start(), path(), 0o755),
    lambda: call("symlinkat", os.fsencode(choose.choice(targets)), start(), path()),
    lambda: call("linkat", start(), path(), start(), path(), choose.choice((0, 0x400))),
    lambda: call("unlinkat", start(), path(), 0),
    lambda: call("unlinkat", start(), path(), 0x200),
    lambda: call("truncate", path(), 3),
    lambda: call("fchmodat", start(), path(), 0o700),
]
done = 0
for _ in range(15_000):
    try:
        choose.choice(calls)()
        done += 1
    except OSError:
        pass
outcomes["done"] = done
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_sequence_of_calls_changes_what_is_closed(seed: int, held: Repositories) -> None:
    assert held.attack(f"seed = {seed}\n" + ANYTHING)["done"] > 500
    held.assert_unchanged()
    for git in (held.work / ".git", held.work / "sub" / ".git"):
        assert [path for path in git.rglob("*") if path.is_symlink()] == []
