"""Commands in Landlock's sandbox that change metadata faster than one can look, and a lot of it."""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path

import msgspec
import pytest

from nousd.tools.process.supervisor import ProcessEnd, run_supervised
from nousd.tools.sandbox import filter_listener
from nousd.tools.sandbox.interface import Request
from tests.tools.landlock_bench import CALLS, Attacked, bench_in
from tests.tools.sandbox_bench import SandboxBench

PYTHON = os.path.realpath(sys.executable)

RACE_SECONDS = 1.5


@pytest.fixture
def attacked(tmp_path: Path) -> Attacked:
    (tmp_path / "machine").mkdir()
    return Attacked(tmp_path / "machine")


@pytest.fixture
def held(attacked: Attacked) -> SandboxBench:
    bench = bench_in(attacked.root)
    if (reason := filter_listener.why_not()) is not None:
        pytest.skip(reason)
    return bench


def racing(changing: str, calling: str) -> str:
    """Return an attack in which one process changes something while others call."""
    return f"""
import signal, time
until = time.monotonic() + {RACE_SECONDS}
os.chdir(os.environ["TMPDIR"])
open("own", "w").close()
os.symlink("own", "link")
os.mkdir("folder")
open("folder/file", "w").close()
parent = os.getpid()
done = 0
if os.fork() == 0:
    while time.monotonic() < until:
        {changing}
    os._exit(0)
while time.monotonic() < until:
    try:
        {calling}
        done += 1
    except OSError:
        pass
os.wait()
os.chdir(os.path.dirname(os.path.dirname(inside)))
outcomes["done"] = done
"""


RACES = {
    "a link": (
        """
        os.symlink(key, "other"); os.rename("other", "link")
        os.symlink("own", "other"); os.rename("other", "link")""",
        """call("chmod", b"link", 0o666); call("utimensat", HERE, b"link", None, 0)""",
    ),
    "a folder": (
        """
        os.rename("folder", "aside"); os.symlink(os.path.dirname(shown), "folder")
        os.remove("folder"); os.rename("aside", "folder")""",
        """call("fchmodat", HERE, b"folder/file", 0o666)""",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("changing", "calling"), RACES.values(), ids=RACES)
def test_a_path_that_changes_meanwhile_leads_to_nothing_outside(
    changing: str, calling: str, attacked: Attacked, held: SandboxBench
) -> None:
    outcomes = attacked.attack(racing(changing, calling))
    assert outcomes["done"] > 10
    attacked.assert_unchanged()


MEMORY = """
import mmap, time
until = time.monotonic() + 1.5
own = os.fsencode(os.environ["TMPDIR"]) + b"/own"
open(own, "w").close()
size = max(len(own), len(key)) + 1
shared = mmap.mmap(-1, 4096)
address = ctypes.addressof(ctypes.c_char.from_buffer(shared))
if os.fork() == 0:
    while time.monotonic() < until:
        shared[:size] = key.ljust(size, b"\\0")
        shared[:size] = own.ljust(size, b"\\0")
    os._exit(0)
done = 0
while time.monotonic() < until:
    try:
        call("chmod", address, 0o666)
        done += 1
    except OSError:
        pass
os.wait()
outcomes["done"] = done
"""


@pytest.mark.slow
def test_a_path_that_is_written_over_meanwhile_leads_to_nothing_outside(
    attacked: Attacked, held: SandboxBench
) -> None:
    assert attacked.attack(MEMORY)["done"] > 10
    attacked.assert_unchanged()


INTERRUPTED = """
import signal
signals = 0
def count(*_):
    global signals
    signals += 1
signal.signal(signal.SIGALRM, count)
signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
for number in range(1000):
    if libc.chmod(inside, 0o600 + number % 8) < 0:
        outcomes["error"] = ctypes.get_errno()
signal.setitimer(signal.ITIMER_REAL, 0)
outcomes["signals"] = signals
"""


@pytest.mark.slow
def test_a_signal_interrupts_no_call_that_waits(attacked: Attacked, held: SandboxBench) -> None:
    outcomes = attacked.attack(INTERRUPTED)
    assert outcomes.pop("signals") > 20
    assert outcomes == {}


FLOOD = """
import os, sys
for _ in range(15):
    if os.fork() == 0:
        break
while True:
    os.chmod("src/file", 0o600)
"""

# The kernel's own limit, which holds for every user but root, may refuse a fork before the supervisor
# has counted.
BOMB = """
import os
try:
    for _ in range(100):
        if os.fork() == 0:
            break
except OSError:
    pass
while True:
    os.chmod("src/file", 0o600)
"""


@pytest.mark.slow
async def test_a_flood_of_calls_keeps_no_command_from_its_time_limit(
    attacked: Attacked, held: SandboxBench
) -> None:
    began = time.monotonic()
    result = await held.run_python(FLOOD, timeout=2)
    assert "timed out" in result.text
    assert time.monotonic() - began < 12


@pytest.mark.slow
async def test_a_flood_of_calls_keeps_no_command_from_the_limit_of_processes(
    attacked: Attacked, held: SandboxBench
) -> None:
    result = await held.run_python(BOMB)
    assert result.text.endswith("went beyond the limit processes of 64")


LASTING = (
    CALLS
    + """
import time
if os.fork() == 0:
    os.setsid()
    os.close(1), os.close(2)
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.02)
    result = libc.chmod(b"src/file", 0o640)
    with open("src/result", "w") as file:
        file.write(str(ctypes.get_errno()))
    os._exit(0)
time.sleep(1000)
"""
)


@pytest.mark.slow
async def test_without_its_supervisor_no_call_succeeds(
    attacked: Attacked, held: SandboxBench
) -> None:
    """Of a process that left the group: it lives until the guard has found it."""
    (attacked.work / "src" / "result").touch()
    (attacked.work / "lasting.py").write_text("import os\n" + LASTING)
    argv = [PYTHON, "-I", "lasting.py"]
    request = Request(argv=argv, env={"PATH": "/usr/bin"}, workdir=attacked.work)
    sandbox = held.find()
    assert sandbox is not None
    said: list[bytes] = []
    with sandbox.hold(request) as process:
        killer = "sleep 1; kill -KILL $PPID; sleep 1"
        argv = ["/bin/sh", "-c", f'"$@" & {killer}', "sh", *process.argv]
        ended = await run_supervised(
            argv,
            cwd=attacked.work,
            env=process.env,
            on_output=said.append,
            timeout_seconds=20,
            sandboxed=msgspec.structs.replace(process, argv=argv),
        )
    assert ended == ProcessEnd(failure="lost its supervisor")
    assert (attacked.work / "src" / "result").read_text() in ("", str(errno.ENOSYS))
    assert attacked.inside.stat().st_mode & 0o777 == 0o600


async def test_where_nobody_can_be_asked_all_of_it_is_refused_and_told(
    attacked: Attacked, held: SandboxBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_listener, "why_not", lambda: "there is no listener")
    outcomes = await held.attack(f"""{CALLS}
inside = b"src/file"
file = os.open(inside, os.O_RDONLY)
attempt("chmod", "chmod", inside, 0o666)
attempt("fchmod", "fchmod", file, 0o666)
attempt("fchmodat2", "fchmodat2", HERE, inside, 0o666, 0)
attempt("utimensat", "utimensat", HERE, inside, None, 0)
attempt("futimens", "utimensat", file, None, None, 0)
attempt("chown", "fchownat", HERE, inside, -1, -1, 0)
""")
    assert set(outcomes.values()) == {errno.EPERM}
    told = await held.text("bash", command="chmod 666 src/file")
    assert "modes, times and owners of files cannot be changed" in told
    assert attacked.inside.stat().st_mode & 0o777 == 0o600
