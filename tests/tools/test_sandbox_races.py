"""Folders replaced while a sandbox is being set up, always at the worst moment.

The other command is the test: what it does, a command in the same workdir could do as well. It is done
either when a sandbox knows what it will mount, or in the midst of bubblewrap, which first finds out what
the names of its sources really mean and later mounts that: a wrapper does the first of these between two
exchanges.
"""

from __future__ import annotations

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
from nousd.tools.sandbox.bubblewrap import Bubblewrap
from nousd.tools.sandbox.interface import Request, SandboxedProcess
from nousd.tools.sandbox.mount_placeholders import MountPlaceholders
from nousd.tools.sandbox.visible_paths import Chosen
from tests.tools.bench import SECRET
from tests.tools.sandbox_bench import CHOSEN, PYTHON, SandboxBench, show

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
def held(tmp_path: Path) -> SandboxBench:
    return SandboxBench(tmp_path, "bubblewrap")


class Swap:
    """Turns something into a link, and back, as a command may that is to be mistaken."""

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


# --- what is mounted -----------------------------------------------------------------------------


class Paused:
    """A bubblewrap that waits before it looks at its sources, and again behind that."""

    def __init__(self, folder: Path, chosen: Chosen) -> None:
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


async def swapped_at_the_mounts(
    held: SandboxBench, command: str, swap: Swap, chosen: Chosen = CHOSEN
) -> ToolResult:
    paused = Paused(held.outside.parent / "bin", chosen)
    held.context = msgspec.structs.replace(held.context, sandbox=lambda: paused.sandbox)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(paused.swap, swap)
            result = await held.call("bash", command=command)
            nursery.cancel_scope.cancel()
    finally:
        paused.close()
    return result


async def swapped_before_anything_is_started(
    held: SandboxBench, command: str, swap: Swap, chosen: Chosen = CHOSEN
) -> ToolResult:
    class Swapping(Bubblewrap):
        @contextmanager
        def hold(self, request: Request) -> Iterator[SandboxedProcess]:
            with super().hold(request) as started:
                swap.do()
                yield started

    sandbox = Swapping(real_program(), chosen)
    held.context = msgspec.structs.replace(held.context, sandbox=lambda: sandbox)
    return await held.call("bash", command=command)


moments = pytest.mark.parametrize(
    "run", [swapped_before_anything_is_started, swapped_at_the_mounts], ids=["before", "mounting"]
)
Running = Callable[..., Awaitable[ToolResult]]


def files_in(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture
def outside(held: SandboxBench) -> Iterator[Path]:
    """A folder that has what is closed in others as well, as a home often does; it must not change."""
    for name in ("AGENTS.md", "private", ".nousd", ".git", ".state"):
        (held.outside / name).mkdir()
    before = files_in(held.outside)
    yield held.outside
    assert files_in(held.outside) == before


def assert_nothing_got_out(result: ToolResult) -> None:
    show(f"--- with what was exchanged: {result.text}")
    assert SECRET not in result.text


@moments
async def test_a_folder_on_the_way_to_a_closed_place_shows_nothing_else(
    run: Running, held: SandboxBench, outside: Path
) -> None:
    held.put("sub/AGENTS.md", "x")
    command = "cat sub/secret.txt; echo x > sub/attack; echo x > sub/secret.txt"
    assert_nothing_got_out(await run(held, command, Swap(held.work / "sub", outside)))


@moments
async def test_a_closed_file_shows_nothing_else(
    run: Running, held: SandboxBench, outside: Path
) -> None:
    swap = Swap(held.put("sub/AGENTS.md", "x"), outside / "secret.txt")
    assert_nothing_got_out(await run(held, "cat sub/AGENTS.md", swap))


@moments
async def test_a_folder_on_the_way_to_a_hidden_place_shows_nothing_else(
    run: Running, held: SandboxBench, outside: Path
) -> None:
    held.put("sub/private/key", "x")
    held.close(reading=["sub/private(/.*)?"])
    swap = Swap(held.work / "sub", outside)
    assert_nothing_got_out(await run(held, "cat sub/secret.txt; cat sub/private/key", swap))


@moments
async def test_a_workdir_in_another_one_shows_nothing_else(
    run: Running, held: SandboxBench, outside: Path
) -> None:
    command = "cat secret.txt; echo x > attack; echo x > secret.txt"
    assert_nothing_got_out(await run(held, command, Swap(held.work, outside)))


@moments
async def test_a_chosen_place_in_a_workdir_shows_nothing_else(
    run: Running, held: SandboxBench, outside: Path
) -> None:
    cache = outside.parent / "shared" / "cache"
    cache.mkdir(parents=True)
    chosen = msgspec.structs.replace(CHOSEN, write_paths=(cache,))
    command = f"cat {cache}/secret.txt; echo x > {cache}/attack"
    assert_nothing_got_out(await run(held, command, Swap(cache, outside), chosen))


@moments
async def test_what_nobody_exchanged_stays_closed_beside_it(
    run: Running, held: SandboxBench, outside: Path
) -> None:
    for folder in ("one", "two"):
        git_init(held.work / folder)
    (held.work / "one" / "sub").mkdir()
    config = (held.work / "two" / ".git" / "config").read_bytes()
    result = await run(
        held,
        "echo x >> two/.git/config; echo x > two/.git/hooks/pre-commit; mkdir .nousd/x; echo ran",
        Swap(held.work / "one" / "sub", outside),
    )
    assert_nothing_got_out(result)
    assert "ran" in result.text.splitlines()
    assert (held.work / "two" / ".git" / "config").read_bytes() == config
    assert not (held.work / "two" / ".git" / "hooks" / "pre-commit").exists()


async def test_a_chosen_place_that_became_a_link_is_not_followed(
    held: SandboxBench, outside: Path
) -> None:
    """Nor at any later time: what it leads to is not what the user chose."""
    cache = held.work / "cache"
    cache.mkdir()
    chosen = msgspec.structs.replace(CHOSEN, write_paths=(cache,), read_paths=(cache,))
    Swap(cache, outside).do()
    bench = SandboxBench(held.work.parent / "other", "bubblewrap", chosen)
    assert_nothing_got_out(await bench.call("bash", command=f"cat {cache}/* {outside}/*"))


# --- what the daemon itself makes and removes -----------------------------------------------------


def hold(held: SandboxBench, meanwhile: Callable[[], None], chosen: Chosen = CHOSEN) -> None:
    request = Request(argv=["/bin/true"], env={}, workdir=held.work)
    with Bubblewrap(real_program(), chosen).hold(request):
        meanwhile()


def test_a_link_is_made_again_only_where_it_was(held: SandboxBench, outside: Path) -> None:
    held.put("target.md", "x")
    (held.work / "sub").mkdir()
    (held.work / "sub" / "AGENTS.md").symlink_to("../target.md")
    (outside / "AGENTS.md").rmdir()
    before = files_in(outside)
    hold(held, Swap(held.work / "sub", outside).do)
    assert files_in(outside) == before
    (outside / "AGENTS.md").mkdir()


def test_what_stood_in_is_removed_only_where_it_stood(held: SandboxBench, outside: Path) -> None:
    git_init(held.work / "sub")
    (outside / ".git" / "modules").mkdir()
    (outside / ".git" / "modules").chmod(0o1755)
    (outside / ".git" / "commondir").write_text(".\n")
    before = files_in(outside)
    hold(held, Swap(held.work / "sub", outside).do)
    assert files_in(outside) == before
    shutil.rmtree(outside / ".git")
    (outside / ".git").mkdir()


def test_what_stands_in_is_made_only_where_it_is_meant(
    held: SandboxBench, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git_init(held.work / "sub")
    made = MountPlaceholders.made

    def swapped(
        self: MountPlaceholders, closed: Iterable[Path]
    ) -> AbstractContextManager[tuple[Path, ...]]:
        paths = list(closed)
        Swap(held.work / "sub", outside).do()
        return made(self, paths)

    monkeypatch.setattr(MountPlaceholders, "made", swapped)
    before, seen = files_in(outside), []
    hold(held, lambda: seen.append(files_in(outside)))
    assert seen == [before]


def test_a_file_is_set_aside_only_where_it_turned_up(held: SandboxBench, outside: Path) -> None:
    (held.work / ".a" / "private").mkdir(parents=True)
    (outside / "private" / "rules").write_text("theirs")
    before = files_in(outside)
    chosen = msgspec.structs.replace(CHOSEN, protected=(".a/private/rules",))
    hold(held, Swap(held.work / ".a", outside).do, chosen)
    assert files_in(outside) == before
    (outside / "private" / "rules").unlink()


# --- two daemons ---------------------------------------------------------------------------------


async def test_what_stands_in_stays_while_another_daemon_needs_it(held: SandboxBench) -> None:
    """Each has its own bubblewrap; a lock of one counts for the other, as for another process."""
    before = held.names()
    one, other = (Bubblewrap(real_program(), CHOSEN) for _ in range(2))
    request = Request(argv=["/bin/true"], env={}, workdir=held.work)
    os.mkfifo(held.work / "gate")
    held.context = msgspec.structs.replace(held.context, sandbox=lambda: other)
    texts: list[str] = []

    async def run() -> None:
        command = "cat gate; mkdir .nousd/x || mkdir -p .git/hooks || echo refused"
        texts.append(await held.text("bash", command=command))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            with one.hold(request):
                nursery.start_soon(run)
                gate = await trio.to_thread.run_sync(partial(open, held.work / "gate", "w"))
            assert {".nousd", ".git"} <= held.names()
            gate.close()
    assert texts[0].splitlines()[-1] == "refused"
    assert held.names() - {"gate"} == before


async def test_what_stands_in_cannot_be_locked_by_a_command(held: SandboxBench) -> None:
    outcomes = await held.attack("""
import fcntl
tried("lock", lambda: fcntl.flock(os.open(".nousd", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB))
""")
    assert outcomes == {"lock": "done"}
    assert ".nousd" not in held.names()


def test_who_cannot_have_a_place_for_itself_says_so(
    held: SandboxBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_ins, "_TRIES_MAX", 2)
    (held.work / ".nousd").mkdir(mode=0o1755)
    (held.work / ".nousd").chmod(0o1755)
    locked = os.open(held.work / ".nousd", os.O_RDONLY)
    try:
        fcntl.flock(locked, fcntl.LOCK_EX)
        with pytest.raises(
            ToolError, match=r"^sandbox_failed: .*\.nousd: what stands in for it is"
        ):
            hold(held, lambda: None)
    finally:
        os.close(locked)
