"""Commands in Landlock's sandbox that make, rename and remove entries beside something closed."""

from __future__ import annotations

import errno
import marshal
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from nousd.tools.process import entry_calls, metadata_calls
from nousd.tools.sandbox import filter_listener, seccomp
from nousd.tools.sandbox.interface import Request
from tests.tools.landlock_bench import REFUSED, Repositories, bench_in, repositories_in


@pytest.fixture
def held(tmp_path: Path) -> Repositories:
    return repositories_in(tmp_path / "machine")


# --- what a command may do ------------------------------------------------------------------------

FORMS = """
import stat
for top in ("", "sub/", ".git/", "sub/.git/"):
    folder = os.open(top or ".", os.O_PATH)
    here = os.fsencode(top)
    made = lambda name: os.path.isfile(os.path.join(top, name)) or 1 / 0
    attempt(f"open {top}", "open", here + b"n1", 0o101, 0o644)
    attempt(f"openat {top}", "openat", folder, b"n2", 0o101, 0o644)
    attempt(f"openat absolute {top}", "openat", 999, os.getcwdb() + b"/" + here + b"n3", 0o101, 0o644)
    attempt(f"creat {top}", "creat", here + b"n4", 0o644)
    attempt(f"mknod {top}", "mknod", here + b"n5", 0o100644, 0)
    attempt(f"mknodat {top}", "mknodat", folder, b"n6", 0o644, 0)
    for name in ("n1", "n2", "n3", "n6", *(("n4", "n5") if numbers["creat"] else ())):
        tried(f"{name} is made in {top}", lambda: made(name))
    attempt(f"mode {top}", "fchmodat", folder, b"n2", 0o750)
    tried(f"has its mode {top}", lambda: os.stat(top + "n2").st_mode & 0o777 == 0o750 or 1 / 0)
    attempt(f"times {top}", "utimensat", folder, b"n2", old, 0)
    attempt(f"mode by descriptor {top}", "fchmod", os.open(top + "n3", os.O_RDONLY), 0o600)
    attempt(f"truncate {top}", "truncate", here + b"n2", 5)
    tried(f"is cut {top}", lambda: os.stat(top + "n2").st_size == 5 or 1 / 0)
    attempt(f"mkdir {top}", "mkdir", here + b"d1", 0o700)
    attempt(f"mkdirat {top}", "mkdirat", folder, b"d2/", 0o755)
    attempt(f"deeper {top}", "openat", folder, b"d2/x", 0o101, 0o600)
    attempt(f"deeper folder {top}", "mkdirat", folder, b"d2/y", 0o755)
    attempt(f"rename {top}", "rename", here + b"n1", here + b"r1")
    attempt(f"renameat {top}", "renameat", folder, b"n2", folder, b"d2/r2")
    attempt(f"renameat2 {top}", "renameat2", folder, b"n3", folder, b"r3", 1)
    attempt(f"exchange {top}", "renameat2", folder, b"d2/r2", folder, b"r3", 2)
    attempt(f"folder {top}", "renameat", folder, b"d2/", folder, b"d3/")
    attempt(f"linkat {top}", "linkat", folder, b"r3", folder, b"l1", 0)
    attempt(f"link {top}", "link", here + b"r3", here + b"d3/l2")
    tried(f"is linked {top}", lambda: os.path.samefile(top + "r3", top + "l1") or 1 / 0)
    if not top.endswith(".git/"):
        attempt(f"symlinkat {top}", "symlinkat", b"r3", folder, b"s1")
        attempt(f"symlink {top}", "symlink", b"r3", here + b"s2")
        attempt(f"through a link {top}", "openat", folder, b"s1", 0o1001, 0)
        tried(f"is cut {top}", lambda: os.stat(top + "r3").st_size == 0 or 1 / 0)
        attempt(f"a link to nothing {top}", "symlinkat", b"d3/new", folder, b"s3")
        attempt(f"made through it {top}", "openat", folder, b"s3", 0o101, 0o600)
        tried(f"is made {top}", lambda: made("d3/new"))
        os.remove(top + "s1")
    attempt(f"unlinkat {top}", "unlinkat", folder, b"l1", 0)
    attempt(f"unlink {top}", "unlink", here + b"d3/l2")
    attempt(f"rmdir {top}", "rmdir", here + b"d3/y")
    os.mkdir(top + "d4")
    attempt(f"rmdir at {top}", "unlinkat", folder, b"d4", 0x200)
os.rename("src", "moved")
open("moved/x", "w").close()
os.mkdir("src")
open("src/x", "w").close()
os.rename("src/x", "x")
os.rename("moved/x", "src/x")
os.rename("x", "moved/x")
os.remove("a.txt")
os.mkdir("a.txt")
open("a.txt/x", "w").close()
"""


@pytest.mark.slow
def test_every_form_of_a_call_does_what_it_says_beside_something_closed(held: Repositories) -> None:
    outcomes = held.attack(FORMS)
    assert len(outcomes) > 100
    assert {what: got for what, got in outcomes.items() if got != "done"} == {}
    held.assert_unchanged()


LIKE_OUTSIDE = """
import fcntl, resource, stat
os.umask(0o077)
os.mkdir("private")
outcomes["private"] = oct(os.stat("private").st_mode)
os.umask(0o027)
def facts(name, flags=os.O_CREAT | os.O_WRONLY, mode=0o666):
    file = os.open(name, flags, mode)
    status = os.fstat(file)
    return file, oct(status.st_mode), status.st_uid == os.getuid(), fcntl.fcntl(file, fcntl.F_GETFL)
file, mode, owner, flags = facts("new", os.O_CREAT | os.O_RDWR | os.O_APPEND)
outcomes["mode"], outcomes["owner"] = mode, owner
outcomes["flags"] = flags & (os.O_APPEND | os.O_NONBLOCK | 3) == os.O_APPEND | os.O_RDWR
os.write(file, b"some"), os.lseek(file, 0, 0), os.write(file, b"more")
outcomes["appended"] = os.pread(file, 100, 0).decode()
outcomes["closed on exec"] = fcntl.fcntl(file, fcntl.F_GETFD) == fcntl.FD_CLOEXEC
inherited = call("openat", HERE, b"new", os.O_WRONLY, 0)
outcomes["inherited"] = fcntl.fcntl(inherited, fcntl.F_GETFD) == 0
outcomes["blocks"] = not fcntl.fcntl(inherited, fcntl.F_GETFL) & os.O_NONBLOCK
outcomes["does not block"] = bool(facts("new", os.O_WRONLY | os.O_NONBLOCK)[3] & os.O_NONBLOCK)
os.mkdir("folder", 0o777)
outcomes["folder"] = oct(os.stat("folder").st_mode)
attempt("ENOENT", "openat", HERE, b"missing", os.O_WRONLY, 0)
attempt("ENOENT folder", "openat", HERE, b"missing/x", os.O_CREAT | os.O_WRONLY, 0o600)
attempt("EEXIST", "openat", HERE, b"new", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
attempt("EEXIST folder", "mkdirat", HERE, b"folder", 0o700)
attempt("EISDIR", "openat", HERE, b"folder", os.O_WRONLY, 0)
attempt("ENOTDIR", "openat", HERE, b"new/x", os.O_CREAT | os.O_WRONLY, 0o600)
attempt("ENOTDIR made", "mkdirat", HERE, b"new/x", 0o700)
attempt("ENAMETOOLONG", "mkdirat", HERE, b"x" * 300, 0o700)
attempt("ENOTEMPTY", "unlinkat", HERE, b"src/..", 0x200)
attempt("EBADF", "openat", 999, b"x", os.O_CREAT | os.O_WRONLY, 0o600)
attempt("EFAULT", "openat", HERE, 1, os.O_CREAT | os.O_WRONLY, 0o600)
attempt("EINVAL", "renameat2", HERE, b"new", HERE, b"new2", 64)
attempt("EINVAL inside", "renameat2", HERE, b"folder", HERE, b"folder/x", 0)
attempt("EEXIST renamed", "renameat2", HERE, b"new", HERE, b"folder", 1)
attempt("EOPNOTSUPP", "openat", HERE, b".", os.O_TMPFILE | os.O_RDWR, 0o600)
attempt("EPERM", "openat", HERE, b"runs", os.O_CREAT | os.O_WRONLY, 0o4755)
os.symlink("loop", "loop")
attempt("ELOOP", "openat", HERE, b"loop", os.O_WRONLY, 0)
attempt("ELOOP at once", "openat", HERE, b"loop", os.O_WRONLY | os.O_NOFOLLOW, 0)
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
attempt("EFBIG", "truncate", b"new", 1001)
attempt("EFBIG by descriptor", "truncate", b"src/../new", 1 << 40)
tried("EFBIG written", lambda: os.pwrite(inherited, b"x" * 10, 5000))
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
def many():
    while True:
        os.open("new", os.O_WRONLY)
tried("EMFILE", many)
"""


@pytest.mark.slow
def test_results_and_errors_are_as_if_the_command_had_made_it_itself(held: Repositories) -> None:
    outcomes = held.attack(
        LIKE_OUTSIDE
        + """
os.closerange(3, 20)
"""
    )
    assert outcomes.pop("mode") == "0o100640"
    assert outcomes.pop("private") == "0o40700"
    assert outcomes.pop("folder") == "0o40750"
    assert outcomes.pop("appended") == "somemore"
    facts = [what for what, got in outcomes.items() if isinstance(got, bool)]
    assert len(facts) == 6
    assert [what for what in facts if not outcomes.pop(what)] == []
    assert {
        what: got for what, got in outcomes.items() if got != getattr(errno, what.split()[0])
    } == {}


def test_a_command_has_no_descriptors_but_its_own(held: Repositories) -> None:
    outcomes = held.attack("""
before = set(os.listdir("/proc/self/fd"))
files = [os.open(f"new{number}", os.O_CREAT | os.O_WRONLY) for number in range(20)]
files += [os.open(f".git/new{number}", os.O_CREAT | os.O_RDWR) for number in range(20)]
os.mkdir("folder"), os.rename("new1", "folder/new1"), os.rename("new2", "src/new2")
opened = {str(file) for file in files}
more = set(os.listdir("/proc/self/fd")) - before - opened
outcomes["more"] = [file for file in more if os.path.lexists("/proc/self/fd/" + file)]
outcomes["wrong"] = [
    place for file in files
    if not (place := os.readlink(f"/proc/self/fd/{file}")).startswith(os.getcwd())
]
""")
    assert outcomes == {"more": [], "wrong": []}


def test_files_of_a_folder_belong_to_its_group_as_outside(held: Repositories) -> None:
    groups = os.getgroups() if os.geteuid() != 0 else [61_235]
    if not groups:
        pytest.skip("this user has one group only")
    os.chown(held.work, -1, groups[-1])
    held.work.chmod(0o2775)
    held.text("echo x > new; mkdir folder")
    assert {(held.work / name).stat().st_gid for name in ("new", "folder")} == {groups[-1]}
    assert (held.work / "folder").stat().st_mode & 0o2000


@pytest.mark.slow
def test_a_pipe_or_a_lease_does_not_hold_up_what_is_decided(held: Repositories) -> None:
    """Nobody reads from the pipe, and the lease is never given back."""
    os.mkfifo(held.work / ".git" / "pipe")
    outcomes = held.attack("""
import fcntl, signal, time
if os.fork() == 0:
    os.close(os.open(".git/pipe", os.O_WRONLY))
    os._exit(0)
open("leased", "w").close()
file = os.open("leased", os.O_RDONLY)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
signal.signal(signal.SIGIO, signal.SIG_IGN)
began = time.monotonic()
tried("leased", lambda: os.open("leased", os.O_WRONLY))
tried("beside", lambda: os.close(os.open("new", os.O_CREAT | os.O_WRONLY)))
outcomes["quick"] = time.monotonic() - began < 5
""")
    assert outcomes == {"leased": errno.EAGAIN, "beside": "done", "quick": True}


@pytest.mark.slow
def test_what_is_made_beside_something_unreadable_can_be_read_and_the_other_not(
    held: Repositories,
) -> None:
    (held.work / ".state").mkdir(exist_ok=True)
    (held.work / ".state" / "key").write_text("kept")
    os.link(held.work / ".state" / "key", held.work / ".state" / "second")
    outcomes = held.attack("""
with open("new", "w") as file:
    file.write("x")
tried("read", lambda: open("new").read() == "x" or 1 / 0)
os.makedirs("n/m")
open("n/m/file", "w").close()
tried("read below", lambda: open("n/m/file").read())
tried("list", lambda: os.listdir("n/m") == ["file"] or 1 / 0)
os.symlink("new", "link")
tried("read by a link", lambda: open("link").read() == "x" or 1 / 0)
os.symlink(".state/key", "other")
tried("the key by a link", lambda: open("other").read())
tried("the key", lambda: open(".state/key").read())
tried("its folder moved", lambda: os.rename(".state", "n/state"))
tried("another name", lambda: os.link(".state/key", "n/key"))
tried("the folder above", lambda: open("n/../.state/key").read())
tried("exchanged", lambda: call("renameat2", HERE, b".state", HERE, b"n", 2))
tried("made in it", lambda: open(".state/new", "w"))
tried("over it", lambda: os.rename("new", ".state"))
""")
    fine = ("read", "read below", "list", "read by a link")
    assert [outcomes.pop(what) for what in fine] == ["done"] * 4
    assert len(outcomes) == 8
    assert {what: got for what, got in outcomes.items() if got not in REFUSED} == {}


# --- where nobody is asked ------------------------------------------------------------------------


def plan_of(held: Repositories, *hidden: Path, is_read_only: bool = False) -> dict[str, Any]:
    """Return what the sandbox hands to a command of the workspace."""
    sandbox = bench_in(held.root).find()
    assert sandbox is not None
    request = Request(
        argv=["/bin/true"], env={}, workdir=held.work, hidden=hidden, is_read_only=is_read_only
    )
    with sandbox.hold(request) as process, os.fdopen(os.dup(process.descriptors[0]), "rb") as file:
        file.seek(0)
        plan: dict[str, Any] = marshal.load(file)
        return plan


def test_only_where_something_may_be_written_such_calls_wait(held: Repositories) -> None:
    entries = set(seccomp.map_call_numbers(entries=True)) - set(
        seccomp.map_call_numbers(entries=False)
    )
    assert len(entries) > 10
    assert entries <= set(plan_of(held)["calls"])
    for top in (held.work, held.work / "sub"):
        shutil.rmtree(top / ".git")
    assert entries <= set(plan_of(held)["calls"])
    plan = plan_of(held, is_read_only=True)
    assert not entries & set(plan["calls"])
    assert plan["filter"] == seccomp.program(families=(), shares_machine=True, asks=True)


def test_reading_waits_only_beside_what_must_not_be_read(held: Repositories) -> None:
    both = [
        seccomp.program(
            families=(),
            shares_machine=True,
            asks=True,
            asks_about_entries=True,
            asks_about_reading=reading,
        )
        for reading in (False, True)
    ]
    assert plan_of(held)["filter"] == both[0]
    (held.work / ".env").write_text("kept")
    assert plan_of(held, held.work / ".env")["filter"] == both[1]


@pytest.mark.slow
def test_where_nobody_can_be_asked_git_is_refused_as_landlock_does(
    held: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_listener, "why_not", lambda: "there is no listener")
    outcomes = held.attack("""
tried("a lock", lambda: open(".git/index.lock", "w"))
tried("a file", lambda: open("new", "w"))
tried("a file in a folder", lambda: open("src/new", "w"))
tried("a file in refs", lambda: open(".git/refs/new", "w"))
""")
    assert outcomes == {
        "a lock": errno.EACCES,
        "a file": errno.EACCES,
        "a file in a folder": "done",
        "a file in refs": "done",
    }
    held.assert_unchanged()


def test_the_calls_that_are_asked_about_are_those_that_have_an_answer() -> None:
    assert set(metadata_calls.FORMS) == set(seccomp.METADATA)
    assert set(entry_calls.FORMS) == set(seccomp.ENTRIES)
    known = {*metadata_calls.FORMS, *entry_calls.FORMS}
    assert set(seccomp.map_call_numbers(entries=True).values()) <= known
    assert set(seccomp.map_call_numbers(entries=False).values()) <= set(metadata_calls.FORMS)
