"""The jobs of ``daily_work`` have the same results in each sandbox as outside."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from nousd.config.settings import Settings
from nousd.daemon.policy.sandboxing import detector
from nousd.tools.environment import filter_environment
from nousd.tools.interface import ToolResult
from nousd.tools.sandbox.detect import SandboxName
from tests.tools.daily_work import FOLDERS, JOBS, Job, Tree, tree_of
from tests.tools.sandbox_bench import BACKENDS, SandboxBench

BY_DEFAULT = "git commit and merge in a later call"
"""The job that the default suite does."""

SECONDS_MAX = 300


class Did(msgspec.Struct, frozen=True):
    """What came of a job: the exit code of each call, and all files with what was printed."""

    codes: tuple[int, ...]
    tree: Tree

    def beside(self, other: Did) -> dict[str, object]:
        """Return name -> the two facts, where they differ; of long texts the lines that differ."""
        names = sorted({*self.tree, *other.tree})
        pairs = {name: (self.tree.get(name), other.tree.get(name)) for name in names}
        found: dict[str, object] = {
            name: both for name, both in pairs.items() if both[0] != both[1]
        }
        if self.codes != other.codes:
            found["exit codes"] = (self.codes, other.codes)
        return found


class Place:
    """Where each job is done, also outside, because paths get into files.

    Args:
        root: a directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root / "work"
        self.home = root / "home"
        self._outside: dict[str, Did] = {}

    def outside(self, name: str) -> Did:
        """Return what comes of a job without a sandbox, in an empty home."""
        if name not in self._outside:
            job = JOBS[name]
            began = self.prepare(job)
            env = {**filter_environment(), "HOME": str(self.home)}
            codes = [
                subprocess.run(
                    ["/bin/bash", "-c", text],
                    cwd=self.work,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    timeout=SECONDS_MAX,
                ).returncode
                for text in texts(job)
            ]
            self._outside[name] = Did(tuple(codes), tree_of(self.work, job, began=began))
        return self._outside[name]

    def prepare(self, job: Job) -> float:
        """Make an empty workspace with what a job needs, and return the time."""
        for path in (self.work, self.home):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
        for name in FOLDERS:
            (self.work / name).mkdir()
        if job.prepare is not None:
            job.prepare(self.work)
        for name in job.shown:
            (self.home / name).parent.mkdir(exist_ok=True)
            (self.home / name).symlink_to(Path.home() / name)
        return time.time()


def texts(job: Job) -> Iterator[str]:
    """Yield the calls of a job; what they print goes to files, not into results, which say more."""
    for number, call in enumerate(job.calls):
        yield f"umask 022; set -e; exec > told/{number} 2>&1; cd src; {call}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("daily").resolve())


def is_usable(program: str) -> bool:
    """Return whether a program is here and runs: a launcher may have nothing to launch."""
    if shutil.which(program) is None:
        return False
    return subprocess.run([program, "--version"], capture_output=True).returncode == 0


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == BY_DEFAULT else pytest.mark.slow) for name in JOBS],
)
@pytest.mark.parametrize("backend", BACKENDS)
async def test_daily_work_has_the_same_results_in_a_sandbox_as_outside(
    name: str, backend: SandboxName, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JOBS[name]
    for program in job.programs:
        if not is_usable(program):
            pytest.skip(f"there is no usable {program} here")
    outside = place.outside(name)
    assert set(outside.codes) == {0}, outside.tree
    inside, remarks = await do_inside(place, backend, job, monkeypatch)
    differing = outside.beside(inside)
    if (known := job.differs.get(backend)) is not None:
        assert differing, f"it is not so any more that {known.why}"
        assert known.said in remarks
        return
    assert not differing, "\n".join(f"{name}:\n  {both}" for name, both in differing.items())


async def do_inside(
    place: Place, backend: SandboxName, job: Job, monkeypatch: pytest.MonkeyPatch
) -> tuple[Did, str]:
    """Return what comes of a job in a sandbox as the daemon sets it up, and what was printed."""
    began = place.prepare(job)
    home = Path.home()
    monkeypatch.setenv("HOME", str(home if job.shown else place.home))
    paths = (Path(sys.base_prefix), *(home / name for name in job.shown))
    find = detector(Settings(sandbox=backend, sandbox_paths=paths), ())
    bench = DailyBench(place.root, backend)
    bench.context = msgspec.structs.replace(bench.context, sandbox=find)
    codes = [
        code_of(await bench.call("bash", command=text, timeout=SECONDS_MAX)) for text in texts(job)
    ]
    told = sorted((place.work / "told").iterdir())
    printed = "".join(path.read_text(errors="replace") for path in told)
    return Did(tuple(codes), tree_of(place.work, job, began=began)), printed


class DailyBench(SandboxBench):
    """A bench on which a command may take as long as the machine is slow."""

    seconds_max = 2 * SECONDS_MAX


def code_of(result: ToolResult) -> int:
    found = re.search(r"^Command exited with code (\d+)", result.text, re.MULTILINE)
    assert result.is_error is (found is not None), result.text
    return int(found[1]) if found else 0
