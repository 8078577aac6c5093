"""The daemon as a process on a small filesystem that is really full; needs the right to mount one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.process_harness import Place, running
from tests.harness.daemon import of_type
from tests.harness.stub_model import Gate, StubModel, text_reply, tool_reply

DISK_BYTES = 12 * 1024 * 1024


class SmallDisk:
    """A filesystem of a few MiB in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filling = folder / "filling"

    def fill(self) -> None:
        """Take all the space there is."""
        with self._filling.open("ab", buffering=0) as file:
            while os.statvfs(self.folder).f_bavail:
                try:
                    file.write(bytes(4096))
                except OSError:
                    return

    def free(self) -> None:
        self._filling.write_bytes(b"")


@pytest.fixture
def small_disk(short_folder: Path) -> Iterator[SmallDisk]:
    folder = short_folder / "state"
    folder.mkdir(mode=0o700)
    options = f"size={DISK_BYTES},mode=0700"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a filesystem here")
    yield SmallDisk(folder)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def place(short_folder: Path, small_disk: SmallDisk, stub: StubModel) -> Place:
    return Place(short_folder, stub)


def check_disk_full(error: dict[str, Any]) -> None:
    assert error["code"] == "session_error"
    assert error["details"] == {"reason": "disk_full"}
    assert error["message"] == "the disk is full: nothing was accepted"


READS = ("get_state", "get_messages", "get_tree", "get_queue", "list_sessions", "list_runs")


async def test_a_full_disk_ends_the_run_and_refuses_inputs_but_serves_reads_until_there_is_space(
    place: Place, stub: StubModel, small_disk: SmallDisk
) -> None:
    gate = Gate()
    stub.script(text_reply("begun ", gate, *["word " * 200] * 2000), text_reply("all is well"))
    async with running(place):
        events, client = await place.watch(types="all"), await place.connect()
        accepted = await client.request("prompt", text="go", wait=False)
        await events.until("message_update")
        small_disk.fill()
        gate.open()
        end = await events.until("agent_end", run_id=accepted["run_id"])
        assert end["payload"]["status"] == "interrupted"
        check_disk_full(await client.refusal("prompt", text="refused", wait=False))
        check_disk_full(await client.refusal("new_session"))
        for type in READS:
            await client.request(type)
        assert (await client.request("get_events", types="all"))["events"]
        replayed = await (await place.watch(after="evt-0", types="all")).run()
        assert replayed[-1] == end
        small_disk.free()
        result = await client.request("prompt", text="after")
        assert (result["output"], result["status"]) == ("all is well", "completed")
        texts = [m["text"] for m in (await client.request("get_messages"))["messages"]]
        assert "refused" not in texts


@pytest.mark.slow
async def test_an_output_too_large_for_the_disk_is_not_stored_whole_and_its_call_succeeds(
    place: Place, stub: StubModel
) -> None:
    command = f"head -c {3 * DISK_BYTES} /dev/zero | tr '\\0' a; echo; echo end"
    stub.script(tool_reply(("bash", {"command": command})), text_reply("all is well"))
    async with running(place):
        client, events = await place.connect(), await place.watch()
        await client.request("prompt", text="go", wait=False)
        run = await events.run()
        assert run[-1]["payload"]["status"] == "completed"
        (end,) = of_type(run, "tool_execution_end")
        assert (end["is_error"], "artifact_id" in end) == (False, False)
        result = stub.requests[-1].json["messages"][-1]["content"]
        assert "The whole could not be kept: No space left on device.]" in result
        assert (await client.request("prompt", text="after"))["status"] == "completed"


@pytest.mark.slow
async def test_a_daemon_killed_on_a_full_disk_starts_again_and_closes_its_run(
    place: Place, stub: StubModel, small_disk: SmallDisk
) -> None:
    stub.script(text_reply("begun ", Gate()), text_reply("all is well"))
    async with running(place) as process:
        events, client = await place.watch(), await place.connect()
        accepted = await client.request("prompt", text="go", wait=False)
        await events.until("message_update")
        small_disk.fill()
        await process.kill()
    async with running(place) as process:
        client = await place.connect()
        run = (await client.request("get_run", run_id=accepted["run_id"]))["run"]
        assert run["status"] == "interrupted"
        check_disk_full(await client.refusal("prompt", text="refused"))
        for type in READS:
            await client.request(type)
        small_disk.free()
        assert (await client.request("prompt", text="after"))["output"] == "all is well"
        assert await process.stop() == 0


@pytest.mark.slow
async def test_a_stopped_daemon_starts_again_on_a_full_disk(
    place: Place, stub: StubModel, small_disk: SmallDisk
) -> None:
    stub.script(text_reply("before"), text_reply("after"))
    async with running(place) as process:
        client = await place.connect()
        await client.request("prompt", text="go")
        assert await process.stop() == 0
    small_disk.fill()
    async with running(place):
        client = await place.connect()
        for type in READS:
            await client.request(type)
        check_disk_full(await client.refusal("prompt", text="refused"))
        small_disk.free()
        assert (await client.request("prompt", text="once more"))["output"] == "after"
