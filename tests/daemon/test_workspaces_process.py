"""Sessions in several folders, in a real daemon process: settings, SQLite, a real sandbox."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import cast

import pytest

from tests.daemon.process_harness import Place, running
from tests.daemon.scripted import ScriptedProvider
from tests.daemon.workspaces_bench import ALLOW_MORE, Bench
from tests.harness.daemon import Daemon

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


@pytest.fixture
def place(short_folder: Path) -> Place:
    place = Place(short_folder, sandbox="auto")
    for name in ("a", "b", "work"):
        (short_folder / name).mkdir(exist_ok=True)
        (short_folder / name / "name.txt").write_text(f"this is {name}\n")
    return place


def allow(place: Place, *names: str) -> None:
    flags = [word for name in names for word in ("--workspace", str(place.folder / name))]
    place.options = tuple(flags)


async def bench_on(place: Place) -> Bench:
    events, client = await place.watch(types="all"), await place.connect()
    return Bench(cast("Daemon", place), client, events, ScriptedProvider())


@pytest.mark.slow
@pytest.mark.behaviour("a_lost_workspace_refuses_work")
async def test_a_session_keeps_its_workspace_after_a_kill_and_works_only_while_it_is_allowed(
    place: Place,
) -> None:
    allow(place, "a", "b")
    async with running(place) as process:
        bench = await bench_on(place)
        a, b = [await bench.session(place.folder / name) for name in "ab"]
        assert (await bench.call(a, "read", path="name.txt")).text == "this is a"
        await process.kill()
    allow(place, "b")
    async with running(place):
        bench = await bench_on(place)
        assert (await bench.call(b, "read", path="name.txt")).text == "this is b"
        assert (await bench.call(a, "read", path="name.txt")).text == "this is a"
        await bench.restrict()
        call = {"session_id": a, "tool": "read", "args": {"path": "name.txt"}}
        error = await bench.client.refusal("call_tool", **call)
        assert error["message"] == "workspace_not_allowed"
        assert error["cause"] == (
            f"it must lie in {place.work} or {place.folder / 'b'}; {ALLOW_MORE}"
        )
        state = await bench.client.request("get_state", session_id=a)
        assert state["workspace"] == str(place.folder / "a")
    allow(place, "a")
    async with running(place):
        bench = await bench_on(place)
        assert (await bench.call(a, "read", path="name.txt")).text == "this is a"


@needs_bubblewrap
@pytest.mark.behaviour("a_session_works_in_its_folder")
async def test_a_sandboxed_command_sees_only_the_workspace_of_its_session(
    place: Place,
) -> None:
    allow(place, "a", "b")
    async with running(place):
        bench = await bench_on(place)
        for name, other in (("a", "b"), ("b", "a"), ("work", "a")):
            session = await bench.session(place.folder / name)
            looks = f"cat name.txt; cd {place.folder}; ls; cat {place.folder / other}/name.txt"
            ended = await bench.call(session, "bash", command=looks)
            assert f"this is {name}\n{name}\n" in ended.text
            assert f"this is {other}" not in ended.text
            assert ended.is_error
            writes = f"touch mine.txt; touch {place.folder / other}/mine.txt"
            assert (await bench.call(session, "bash", command=writes)).is_error
            assert (place.folder / name / "mine.txt").exists()
            (place.folder / name / "mine.txt").unlink()


@pytest.mark.slow
@needs_bubblewrap
@pytest.mark.behaviour("a_lost_workspace_refuses_work")
async def test_a_session_cannot_let_the_commands_of_a_nested_session_escape(
    place: Place,
) -> None:
    inner, outside = place.folder / "a" / "inner", place.folder / "outside"
    for folder in (inner, outside):
        folder.mkdir()
    (outside / "secret.txt").write_text("secret")
    allow(place, "a")
    async with running(place):
        bench = await bench_on(place)
        within, around = await bench.session(inner), await bench.session(place.folder / "a")
        assert not (await bench.call(within, "bash", command="true")).is_error
        swap = f"mv inner was && ln -s {outside} inner"
        assert not (await bench.call(around, "bash", command=swap)).is_error
        call = {"session_id": within, "tool": "bash", "args": {"command": "cat secret.txt"}}
        error = await bench.client.refusal("call_tool", **call)
        assert error["message"] == "workspace_not_found"
        assert error["cause"] == "a folder on the way there is a link now"
        # The outer session cannot read through the link either.
        leads = await bench.call(around, "bash", command="cat inner/secret.txt")
        assert leads.is_error
        assert "secret\n" not in leads.text
