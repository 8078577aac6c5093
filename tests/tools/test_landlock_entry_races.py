"""Commands in Landlock's sandbox that change what a call means while it is decided, and many calls."""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path

import msgspec
import pytest

from nousd.tools.process.supervisor import ProcessEnd, run_supervised
from nousd.tools.sandbox.interface import Request
from tests.tools.landlock_bench import CALLS, Repositories, bench_in, repositories_in

PYTHON = os.path.realpath(sys.executable)

RACE_SECONDS = 2.0

TRIES_MIN = 200


@pytest.fixture
def held(tmp_path: Path) -> Repositories:
    return repositories_in(tmp_path / "machine")


RACING = """
import mmap, signal, threading, time
until = time.monotonic() + seconds
kept = os.path.realpath("../kept")
open("own", "w").close()
def swapped_links(*targets):
    for number, target in enumerate(targets):
        os.symlink(target, f"src/target{number}")
    os.symlink(targets[0], "src/link")
    while time.monotonic() < until:
        for number, target in enumerate(targets):
            try:
                os.link(f"src/target{number}", "src/next", follow_symlinks=False)
                os.rename("src/next", "src/link")
            except OSError:
                os.remove("src/next")
tries = 0
def trying(*calls):
    global tries
    while time.monotonic() < until:
        for attempt_ in calls:
            tries += 1
            try:
                result = attempt_()
            except OSError:
                continue
            if isinstance(result, int) and result > 2:
                os.write(result, b"attack") if attempt_ in writing else None
                os.close(result)
writing = set()
def opens(name, flags=os.O_CREAT | os.O_WRONLY | os.O_TRUNC):
    one = lambda: os.open(name, flags, 0o755)
    writing.add(one)
    return one
"""

SWAPPED_LINKS = """
child = os.fork()
if child == 0:
    swapped_links("..", "../.git", "../.git/hooks", "../sub/.git", kept)
    os._exit(0)
while not os.path.lexists("src/link"):
    pass
trying(
    opens("src/link/config"),
    opens("src/link/post-commit"),
    opens("src/link/file"),
    opens("src/link/commondir"),
    lambda: os.truncate("src/link/config", 0),
    lambda: os.rename("src/link/config", "src/link/moved"),
    lambda: os.rename("src/link/hooks", "src/link/moved"),
    lambda: os.rename("own", "src/link/config"),
    lambda: os.remove("src/link/post-commit"),
    lambda: os.remove("src/link/file"),
    lambda: os.link("src/link/config", "another"),
    lambda: os.mkdir("src/link/modules"),
    lambda: os.symlink("config", "src/link/COMMIT_EDITMSG"),
    lambda: os.remove("src/link/COMMIT_EDITMSG"),
    lambda: open("own", "w").close(),
)
os.waitpid(child, 0)
"""

SWAPPED_LAST = """
child = os.fork()
if child == 0:
    swapped_links("../own", "../.git/config", "../.git/hooks/post-commit", kept + "/file", "../.git/new")
    os._exit(0)
while not os.path.lexists("src/link"):
    pass
trying(
    opens("src/link"),
    opens("src/link", os.O_RDWR | os.O_APPEND),
    lambda: os.truncate("src/link", 0),
    lambda: os.link("src/link", "name", follow_symlinks=True),
    lambda: os.link("src/link", ".git/name", follow_symlinks=False),
    lambda: os.rename("src/link", ".git/COMMIT_EDITMSG"),
    lambda: os.rename("src/link", "moved"),
    opens("moved"),
    lambda: os.remove("moved"),
    lambda: os.remove("name"),
)
os.waitpid(child, 0)
"""

SWAPPED_MEMORY = """
names = [b".git/confix", b".git/config", b"sub/.git/configs", b".git/hooks/new"]
names.append(os.fsencode(kept) + b"/file")
shared = mmap.mmap(-1, 4096)
address = ctypes.addressof(ctypes.c_char.from_buffer(shared))
size = max(map(len, names)) + 1
child = os.fork()
if child == 0:
    while time.monotonic() < until:
        for name in names:
            shared[:size] = name.ljust(size, b"\\0")
    os._exit(0)
trying(
    lambda: call("openat", HERE, address, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o755),
    lambda: call("unlinkat", HERE, address, 0) and None,
    lambda: call("renameat2", HERE, b"own", HERE, address, 0) and None,
    lambda: call("linkat", HERE, address, HERE, b"another", 0) and None,
    lambda: open("own", "w").close(),
)
os.waitpid(child, 0)
"""

SWAPPED_DESCRIPTOR = """
folders = [os.open(name, os.O_PATH) for name in (".", ".git", "sub/.git", ".git/hooks", kept)]
start = os.dup(folders[0])
def swap():
    while time.monotonic() < until:
        for folder in folders:
            os.dup2(folder, start)
            os.fchdir(folder)
workdir = os.getcwd()
thread = threading.Thread(target=swap)
thread.start()
trying(
    *(opens(name) for name in ("config", "post-commit", "file")),
    lambda: os.close(os.open("config", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, dir_fd=start)),
    lambda: os.close(os.open("commondir", os.O_CREAT | os.O_WRONLY, dir_fd=start)),
    lambda: os.rename("hooks", "moved", src_dir_fd=start, dst_dir_fd=start),
    lambda: os.remove("post-commit", dir_fd=start),
    lambda: os.rename("config", "moved", src_dir_fd=start, dst_dir_fd=start),
    lambda: os.remove("config"),
    lambda: os.symlink("config", "COMMIT_EDITMSG", dir_fd=start),
)
thread.join()
os.chdir(workdir)
"""

MOVED_FOLDER = """
os.makedirs("made/refs")
os.mkdir("made/hooks")
child = os.fork()
if child == 0:
    while time.monotonic() < until:
        for old, new in (("made", "src/made"), ("src/made", "src/made2"), ("src/made2", "made")):
            try:
                os.rename(old, new)
            except OSError:
                pass
    os._exit(0)
trying(
    opens("made/hooks/x"),
    opens("made/config"),
    lambda: os.rename("made/hooks", ".git/hooks"),
    lambda: os.rename("made", "sub/.git"),
    lambda: os.rename("made/config", ".git/config"),
    lambda: os.symlink("../.git/config", "made/link"),
    lambda: os.rename("made/link", ".git/COMMIT_EDITMSG"),
    lambda: os.rename("made", ".git/logs2"),
    lambda: os.rename("made/../.git/hooks", "made/refs/hooks"),
)
os.waitpid(child, 0)
"""

RACES = {
    "a link on the way": SWAPPED_LINKS,
    "a link at the end": SWAPPED_LAST,
    "the path in memory": SWAPPED_MEMORY,
    "descriptors and the working folder": SWAPPED_DESCRIPTOR,
    "a folder": MOVED_FOLDER,
}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("race", RACES.values(), ids=RACES)
def test_what_changes_while_a_call_is_decided_leads_to_nothing_closed(
    race: str, held: Repositories
) -> None:
    outcomes = held.attack(
        f"seconds = {RACE_SECONDS}" + RACING + race + "\noutcomes['tries'] = tries\n"
    )
    assert outcomes["tries"] > TRIES_MIN
    held.assert_unchanged()
    git = held.work / ".git"
    assert [path for path in git.rglob("*") if path.is_symlink()] == []


LASTING = """
import time
if os.fork() == 0:
    os.setsid()
    os.close(1), os.close(2)
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.02)
    results = []
    for name in (b"new", b"src/new"):
        libc.open(name, os.O_CREAT | os.O_WRONLY, 0o600)
        results.append(ctypes.get_errno())
    os.write(told, str(results).encode())
    os._exit(0)
time.sleep(1000)
"""


@pytest.mark.slow
async def test_without_its_supervisor_nothing_is_made(held: Repositories) -> None:
    """Of a process that left the group: it lives until the guard has found it."""
    (held.work / "src" / "result").touch()
    told = 'import os\ntold = os.open("src/result", os.O_WRONLY)\n'
    (held.work / "lasting.py").write_text(told + CALLS + LASTING)
    argv = [PYTHON, "-I", "lasting.py"]
    request = Request(argv=argv, env={"PATH": "/usr/bin"}, workdir=held.work)
    sandbox = bench_in(held.root).find()
    assert sandbox is not None
    with sandbox.hold(request) as process:
        killer = "sleep 1; kill -KILL $PPID; sleep 1"
        argv = ["/bin/sh", "-c", f'"$@" & {killer}', "sh", *process.argv]
        ended = await run_supervised(
            argv,
            cwd=held.work,
            env=process.env,
            on_output=lambda _: None,
            timeout_seconds=20,
            sandboxed=msgspec.structs.replace(process, argv=argv),
        )
    assert ended == ProcessEnd(failure="lost its supervisor")
    result = (held.work / "src" / "result").read_text()
    assert result in ("", str([errno.ENOSYS, errno.ENOSYS]))
    assert not (held.work / "new").exists()
    assert not (held.work / "src" / "new").exists()


FLOOD = """
import os
for _ in range(15):
    if os.fork() == 0:
        break
while True:
    os.close(os.open("new", os.O_CREAT | os.O_WRONLY))
"""


@pytest.mark.slow
async def test_a_flood_of_such_calls_keeps_no_command_from_its_time_limit(
    held: Repositories,
) -> None:
    began = time.monotonic()
    result = await bench_in(held.root).run_python(FLOOD, timeout=2)
    assert "timed out" in result.text
    assert time.monotonic() - began < 12
