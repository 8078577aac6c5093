"""Directories replaced while a sandbox is being set up, always at the worst moment.

The test plays the other command: a command in the same workspace could do the same. It swaps a path
either when the sandbox knows what it will mount, or inside bubblewrap, which first resolves the names
of its sources and later mounts them: a wrapper resolves them between two swaps.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio

from nousd.errors import ToolError
from nousd.tools.interface import ToolResult
from nousd.tools.sandbox import mount_placeholders as stand_ins
from nousd.tools.sandbox.bubblewrap import Bubblewrap, restore_links
from nousd.tools.sandbox.interface import Request, SandboxedProcess
from nousd.tools.sandbox.mount_placeholders import MountPlaceholders
from nousd.tools.sandbox.visible_paths import SandboxChoices
from tests.harness.daemon import WAIT_SECONDS
from tests.tools.bench import SECRET, Lifeline
from tests.tools.sandbox_bench import CHOSEN, PYTHON, SandboxBench, show

pytestmark = pytest.mark.slow(keep=1)  # the default suite swaps at one of the two moments

WRAPPER = """#!{python} -I
import os, sys
def wait():
    with open({arrived!r}, "w") as file:
        file.write("arrived\\n")
    with open({go!r}) as file:
        file.readline()
arguments = sys.argv[1:]
wait()
for number, argument in enumerate(arguments):
    if argument in ("--bind", "--ro-bind"):
        arguments[number + 1] = os.path.realpath(arguments[number + 1])
wait()
os.execv({program!r}, [{program!r}, *arguments])
"""


@pytest.fixture
def sandbox_bench(tmp_path: Path) -> SandboxBench:
    return SandboxBench(tmp_path, "bubblewrap")


class Swap:
    """Replace a path by a link, and back, as a hostile command may do."""

    def __init__(self, path: Path, target: Path) -> None:
        self._path, self._target = path, target
        self._moved = path.with_name(f"{path.name}.moved")

    def do(self) -> None:
        self._path.rename(self._moved)
        self._path.symlink_to(self._target)

    def undo(self) -> None:
        self._path.unlink()
        self._moved.rename(self._path)


def git_init(folder: Path) -> None:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)


def real_program() -> Path:
    program = shutil.which("bwrap")
    assert program is not None
    return Path(program)


# --- mounts --------------------------------------------------------------------------------------


class Paused:
    """A bubblewrap that waits before it resolves its sources, and again after that."""

    def __init__(self, folder: Path, chosen: SandboxChoices) -> None:
        folder.mkdir()
        arrived, go = pipes = [str(folder / "arrived"), str(folder / "go")]
        for pipe in pipes:
            os.mkfifo(pipe)
        self._arrived, self._go = (os.open(pipe, os.O_RDWR | os.O_NONBLOCK) for pipe in pipes)
        wrapper = folder / "bwrap"
        program = str(real_program())
        text = WRAPPER.format(python=PYTHON, arrived=arrived, go=go, program=program)
        wrapper.write_text(text)
        wrapper.chmod(0o755)
        self.sandbox = Bubblewrap(wrapper, chosen)

    async def swap(self, swap: Swap) -> None:
        for act in (swap.do, swap.undo):
            await trio.lowlevel.wait_readable(self._arrived)
            os.read(self._arrived, 100)
            act()
            os.write(self._go, b"go\n")

    def close(self) -> None:
        os.close(self._arrived)
        os.close(self._go)


async def swap_during_the_mounts(
    sandbox_bench: SandboxBench, command: str, swap: Swap, chosen: SandboxChoices = CHOSEN
) -> ToolResult:
    paused = Paused(sandbox_bench.outside.parent / "bin", chosen)
    sandbox_bench.context = msgspec.structs.replace(
        sandbox_bench.context, sandbox=lambda: paused.sandbox
    )
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(paused.swap, swap)
            result = await sandbox_bench.call("bash", command=command)
            nursery.cancel_scope.cancel()
    finally:
        paused.close()
    return result


async def swap_before_the_start(
    sandbox_bench: SandboxBench, command: str, swap: Swap, chosen: SandboxChoices = CHOSEN
) -> ToolResult:
    class Swapping(Bubblewrap):
        @contextmanager
        def hold(self, request: Request) -> Iterator[SandboxedProcess]:
            with super().hold(request) as started:
                swap.do()
                yield started

    sandbox = Swapping(real_program(), chosen)
    sandbox_bench.context = msgspec.structs.replace(sandbox_bench.context, sandbox=lambda: sandbox)
    return await sandbox_bench.call("bash", command=command)


moments = pytest.mark.parametrize(
    "run", [swap_before_the_start, swap_during_the_mounts], ids=["before", "mounting"]
)
Running = Callable[..., Awaitable[ToolResult]]


def files_in(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture
def outside(sandbox_bench: SandboxBench) -> Iterator[Path]:
    """A directory with protected names, as a home often has them; it must not change."""
    for name in ("AGENTS.md", "private", ".nousd", ".git", ".state"):
        (sandbox_bench.outside / name).mkdir()
    before = files_in(sandbox_bench.outside)
    yield sandbox_bench.outside
    assert files_in(sandbox_bench.outside) == before


def assert_nothing_got_out(result: ToolResult) -> None:
    show(f"--- after the swap: {result.text}")
    assert SECRET not in result.text


async def test_a_closed_file_that_is_replaced_from_outside_meanwhile_is_told(
    sandbox_bench: SandboxBench, sandbox_line: Lifeline
) -> None:
    """The kernel takes the mount away with the file: what cannot be prevented is said."""
    git_init(sandbox_bench.work)
    for name in (".env", "sub/.env", "sub/kept/.env"):
        sandbox_bench.put(name, "old")
    sandbox_bench.close(reading=[r"(.*/)?\.env"])
    command = (
        "exec 9>lifeline; echo ready >&9; until [ -e went ]; do sleep 0.01; done;"
        " cat .env sub/.env sub/kept/.env; cat .git/config | wc -l"
    )

    async def save() -> None:
        await sandbox_line.wait_ready(1)
        for name in (".env", "sub/.env"):
            sandbox_bench.put(f"{name}.new", "new").rename(sandbox_bench.work / name)
        await trio.run_process(["git", "config", "a.b", "c"], cwd=sandbox_bench.work)
        sandbox_bench.put("went", "")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(save)
        result = await sandbox_bench.call("bash", command=command)
    for name in (".env", "sub/.env", ".git/config"):
        assert f"[another program replaced {name} meanwhile" in result.text
    assert "sub/kept/.env meanwhile" not in result.text
    again = await sandbox_bench.call("bash", command="true")
    assert "meanwhile" not in again.text


@pytest.mark.slow
@moments
async def test_a_swapped_directory_above_a_protected_file_exposes_nothing(
    run: Running, sandbox_bench: SandboxBench, outside: Path
) -> None:
    sandbox_bench.put("sub/AGENTS.md", "x")
    command = "cat sub/secret.txt; echo x > sub/attack; echo x > sub/secret.txt"
    assert_nothing_got_out(
        await run(sandbox_bench, command, Swap(sandbox_bench.work / "sub", outside))
    )


@moments
async def test_a_swapped_protected_file_exposes_nothing(
    run: Running, sandbox_bench: SandboxBench, outside: Path
) -> None:
    swap = Swap(sandbox_bench.put("sub/AGENTS.md", "x"), outside / "secret.txt")
    assert_nothing_got_out(await run(sandbox_bench, "cat sub/AGENTS.md", swap))


async def test_a_placeholder_that_became_a_link_fails_the_command(
    sandbox_bench: SandboxBench, outside: Path
) -> None:
    """Its name would no longer be closed."""
    swap = Swap(sandbox_bench.work / ".nousd", outside)
    result = await swap_before_the_start(sandbox_bench, "echo ran $((1 + 1))", swap)
    assert "ran 2" not in result.text


@moments
async def test_a_swapped_directory_above_a_closed_path_exposes_nothing(
    run: Running, sandbox_bench: SandboxBench, outside: Path
) -> None:
    sandbox_bench.put("sub/private/key", "x")
    sandbox_bench.close(reading=["sub/private(/.*)?"])
    swap = Swap(sandbox_bench.work / "sub", outside)
    assert_nothing_got_out(
        await run(sandbox_bench, "cat sub/secret.txt; cat sub/private/key", swap)
    )


@moments
async def test_a_swapped_workspace_exposes_nothing(
    run: Running, sandbox_bench: SandboxBench, outside: Path
) -> None:
    command = "cat secret.txt; echo x > attack; echo x > secret.txt"
    assert_nothing_got_out(await run(sandbox_bench, command, Swap(sandbox_bench.work, outside)))


@moments
async def test_a_swapped_configured_path_exposes_nothing(
    run: Running, sandbox_bench: SandboxBench, outside: Path
) -> None:
    cache = outside.parent / "shared" / "cache"
    cache.mkdir(parents=True)
    chosen = msgspec.structs.replace(CHOSEN, write_paths=(cache,))
    command = f"cat {cache}/secret.txt; echo x > {cache}/attack"
    assert_nothing_got_out(await run(sandbox_bench, command, Swap(cache, outside), chosen))


@moments
async def test_protected_paths_beside_a_swapped_directory_stay_protected(
    run: Running, sandbox_bench: SandboxBench, outside: Path
) -> None:
    for folder in ("one", "two"):
        git_init(sandbox_bench.work / folder)
    (sandbox_bench.work / "one" / "sub").mkdir()
    config = (sandbox_bench.work / "two" / ".git" / "config").read_bytes()
    result = await run(
        sandbox_bench,
        "echo x >> two/.git/config; echo x > two/.git/hooks/pre-commit; mkdir .nousd/x; echo ran",
        Swap(sandbox_bench.work / "one" / "sub", outside),
    )
    assert_nothing_got_out(result)
    assert "ran" in result.text.splitlines()
    assert (sandbox_bench.work / "two" / ".git" / "config").read_bytes() == config
    assert not (sandbox_bench.work / "two" / ".git" / "hooks" / "pre-commit").exists()


@pytest.mark.slow
async def test_a_configured_path_that_became_a_link_is_not_followed(
    sandbox_bench: SandboxBench, outside: Path
) -> None:
    """The user configured the path and not the target of the link."""
    cache = sandbox_bench.work / "cache"
    cache.mkdir()
    chosen = msgspec.structs.replace(CHOSEN, write_paths=(cache,), read_paths=(cache,))
    Swap(cache, outside).do()
    bench = SandboxBench(sandbox_bench.work.parent / "other", "bubblewrap", chosen)
    assert_nothing_got_out(await bench.call("bash", command=f"cat {cache}/* {outside}/*"))


# --- files that the daemon creates and removes ---------------------------------------------------


def hold(
    sandbox_bench: SandboxBench, meanwhile: Callable[[], None], chosen: SandboxChoices = CHOSEN
) -> None:
    request = Request(argv=["/bin/true"], env={}, workdir=sandbox_bench.work)
    with Bubblewrap(real_program(), chosen).hold(request):
        meanwhile()


def test_a_protected_link_is_restored_only_in_its_own_directory(
    sandbox_bench: SandboxBench, outside: Path
) -> None:
    sandbox_bench.put("target.md", "x")
    (sandbox_bench.work / "sub").mkdir()
    (sandbox_bench.work / "sub" / "AGENTS.md").symlink_to("../target.md")
    (outside / "AGENTS.md").rmdir()
    before = files_in(outside)
    hold(sandbox_bench, Swap(sandbox_bench.work / "sub", outside).do)
    assert files_in(outside) == before
    (outside / "AGENTS.md").mkdir()


def test_a_placeholder_is_removed_only_from_its_own_directory(
    sandbox_bench: SandboxBench, outside: Path
) -> None:
    git_init(sandbox_bench.work / "sub")
    (outside / ".git" / "modules").mkdir()
    (outside / ".git" / "modules").chmod(0o1755)
    (outside / ".git" / "commondir").write_text(".\n")
    (outside / ".git" / "commondir").chmod(0o1644)
    before = files_in(outside)
    hold(sandbox_bench, Swap(sandbox_bench.work / "sub", outside).do)
    assert files_in(outside) == before
    shutil.rmtree(outside / ".git")
    (outside / ".git").mkdir()


def test_a_placeholder_is_created_only_in_its_own_directory(
    sandbox_bench: SandboxBench, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git_init(sandbox_bench.work / "sub")
    provide = MountPlaceholders.provide

    def swapped(
        self: MountPlaceholders, closed: Iterable[Path]
    ) -> AbstractContextManager[tuple[Path, ...]]:
        paths = list(closed)
        Swap(sandbox_bench.work / "sub", outside).do()
        return provide(self, paths)

    monkeypatch.setattr(MountPlaceholders, "provide", swapped)
    before, seen = files_in(outside), []
    hold(sandbox_bench, lambda: seen.append(files_in(outside)))
    assert seen == [before]


def test_a_file_is_set_aside_only_in_its_own_directory(
    sandbox_bench: SandboxBench, outside: Path
) -> None:
    (sandbox_bench.work / ".a" / "private").mkdir(parents=True)
    (outside / "private" / "rules").write_text("theirs")
    before = files_in(outside)
    chosen = msgspec.structs.replace(CHOSEN, protected=(".a/private/rules",))
    hold(sandbox_bench, Swap(sandbox_bench.work / ".a", outside).do, chosen)
    assert files_in(outside) == before
    (outside / "private" / "rules").unlink()


# --- two daemons ---------------------------------------------------------------------------------


async def test_a_placeholder_stays_while_another_daemon_needs_it(
    sandbox_bench: SandboxBench,
) -> None:
    """Each daemon has its own bubblewrap; a lock of one counts for the other, as between processes."""
    before = sandbox_bench.names()
    one, other = (Bubblewrap(real_program(), CHOSEN) for _ in range(2))
    request = Request(argv=["/bin/true"], env={}, workdir=sandbox_bench.work)
    os.mkfifo(sandbox_bench.work / "gate")
    sandbox_bench.context = msgspec.structs.replace(sandbox_bench.context, sandbox=lambda: other)
    texts: list[str] = []

    async def run() -> None:
        command = "cat gate; mkdir .nousd/x || mkdir -p .git/hooks || echo refused"
        texts.append(await sandbox_bench.text("bash", command=command))

    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            with one.hold(request):
                nursery.start_soon(run)
                gate = await trio.to_thread.run_sync(
                    partial(open, sandbox_bench.work / "gate", "w")
                )
            assert {".nousd", ".git"} <= sandbox_bench.names()
            gate.close()
    assert texts[0].splitlines()[-1] == "refused"
    assert sandbox_bench.names() - {"gate"} == before


@pytest.mark.slow
async def test_a_placeholder_is_removed_even_if_a_command_locked_it(
    sandbox_bench: SandboxBench,
) -> None:
    outcomes = await sandbox_bench.attack("""
import fcntl
tried("lock", lambda: fcntl.flock(os.open(".nousd", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB))
""")
    assert outcomes == {"lock": "done"}
    assert ".nousd" not in sandbox_bench.names()


def test_a_placeholder_locked_by_another_process_is_an_error(
    sandbox_bench: SandboxBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_ins, "_TRIES_MAX", 2)
    (sandbox_bench.work / ".nousd").mkdir(mode=0o1755)
    (sandbox_bench.work / ".nousd").chmod(0o1755)
    locked = os.open(sandbox_bench.work / ".nousd", os.O_RDONLY)
    try:
        fcntl.flock(locked, fcntl.LOCK_EX)
        with pytest.raises(
            ToolError, match=r"^sandbox_failed: .*\.nousd: what stands in for it is"
        ):
            hold(sandbox_bench, lambda: None)
    finally:
        os.close(locked)


def test_a_link_whose_place_another_command_takes_leaves_no_second_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to("closed")

    def taken(*_: object, **__: object) -> None:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))

    monkeypatch.setattr(os, "rename", taken)
    with restore_links([link]):
        link.unlink()
        link.write_text("instead")
    assert [path.name for path in tmp_path.iterdir()] == ["link"]
