"""Figures as ratios: each row measures the daemon and a yardstick of bare parts, one after the other.

A ratio holds on a noisy machine where a time does not. Nothing here is a test: no limit fails. Run it
with nothing else running.

    scripts/bench                      all rows, as a table
    scripts/bench ping burst           these rows
    scripts/bench --json new.json      also as JSON
    scripts/bench --compare old.json   with the change since then
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import trio

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.stub_model import burst_reply, stub_model  # noqa: E402 - needs the path

PING = b'{"v":"1","id":"1","type":"ping","payload":{}}\n'
PYTHON = sys.executable
DELTAS = 5_000


class Row(NamedTuple):
    """One measurement. ``ratio`` is daemon over yardstick: of times small is good, of rates large."""

    name: str
    daemon: float
    yardstick: float
    unit: str

    @property
    def ratio(self) -> float:
        """Daemon over yardstick."""
        return self.daemon / self.yardstick


# --- yardsticks ------------------------------------------------------------------------------


class _Envelope(msgspec.Struct):
    id: str
    type: str


async def _serve_echo(path: str) -> None:
    """A bare trio server that decodes a line and encodes an answer, and nothing else."""
    decoder, encoder = msgspec.json.Decoder(_Envelope), msgspec.json.Encoder()

    async def serve(stream: trio.SocketStream) -> None:
        rest = b""
        while chunk := await stream.receive_some(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            answers = [
                encoder.encode(
                    {"v": "1", "id": decoder.decode(line).id, "type": "pong", "ok": True}
                )
                for line in lines
            ]
            await stream.send_all(b"".join(answer + b"\n" for answer in answers))

    sock = trio.socket.socket(trio.socket.AF_UNIX)
    await sock.bind(path)
    sock.listen()
    await trio.serve_listeners(serve, [trio.SocketListener(sock)])


async def _serve_stub() -> None:
    """The model: each request gets a burst of deltas. Prints its address."""
    async with stub_model() as stub:
        stub.script(*(burst_reply(DELTAS) for _ in range(1000)))
        print(stub.api_base, flush=True)
        await trio.sleep_forever()


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = _Delta()


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


async def _read_bare(api_base: str) -> float:
    """Reads one burst with httpx2 and msgspec alone; returns deltas per second."""
    import httpx2

    decoder = msgspec.json.Decoder(_Chunk)
    count, rest = 0, b""
    async with httpx2.AsyncClient(trust_env=False) as client:
        start = time.perf_counter()
        async with client.stream("POST", f"{api_base}/chat/completions", json={}) as response:
            async for chunk in response.aiter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: {"):
                        count += bool(decoder.decode(line[6:]).choices)
        return count / (time.perf_counter() - start)


# --- processes -------------------------------------------------------------------------------


@contextmanager
def folder() -> Iterator[Path]:
    """A short folder, because a Unix socket's path is short."""
    path = Path(tempfile.mkdtemp(prefix="nousd-bench-", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def process(*argv: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a program for as long as the block lasts."""
    running = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    )
    try:
        yield running
    finally:
        running.terminate()
        running.wait()


@asynccontextmanager
async def daemon(place: Path, *flags: str) -> AsyncIterator[Path]:
    """Runs the daemon; gives the path of its command socket."""
    path = place / "s"
    argv = ["serve", "--socket", str(path), "--state-dir", str(place / "state"), *flags]
    with process(PYTHON, "-m", "nousd", *argv):
        await _connectable(path)
        yield path


async def _connectable(path: Path) -> None:
    while True:
        try:
            stream = await trio.open_unix_socket(path)
        except OSError:
            await trio.sleep(0.001)
        else:
            await stream.aclose()
            return


# --- rows ------------------------------------------------------------------------------------


async def _ping_times(path: Path) -> float:
    """Returns the median of 3,000 round trips, in microseconds."""
    async with await trio.open_unix_socket(path) as stream:
        times = []
        for _ in range(3_500):
            start = time.perf_counter()
            await stream.send_all(PING)
            await stream.receive_some(4096)
            times.append(time.perf_counter() - start)
        return statistics.median(times[500:]) * 1e6


async def _ping_rate(path: Path) -> float:
    """Returns pings per second with 32 outstanding."""
    async with await trio.open_unix_socket(path) as stream:
        start = time.perf_counter()
        for _ in range(2_000):
            await stream.send_all(PING * 32)
            answers = 0
            while answers < 32:
                answers += (await stream.receive_some(65536)).count(b"\n")
        return 64_000 / (time.perf_counter() - start)


async def ping() -> list[Row]:
    """A round trip, and many at once, against a bare echo server."""
    with folder() as place:
        echo = place / "echo"
        with process(PYTHON, __file__, "--echo", str(echo)):
            await _connectable(echo)
            async with daemon(place) as path:
                bare, ours = await _ping_times(echo), await _ping_times(path)
                bare_rate, our_rate = await _ping_rate(echo), await _ping_rate(path)
    return [
        Row("ping, p50", ours, bare, "us"),
        Row("ping, 32 outstanding", our_rate, bare_rate, "/s"),
    ]


async def _burst(path: Path, readers: int) -> float:
    """Runs one burst to so many readers; returns the stream's deltas per second to the last one."""
    finished = trio.Event()
    left = readers

    async def read(stream: trio.SocketStream) -> None:
        nonlocal left
        tail = b""
        while b'"agent_end"' not in tail:
            tail = tail[-512:] + await stream.receive_some(1 << 20)
        left -= 1
        if not left:
            finished.set()

    async with trio.open_nursery() as nursery:
        for _ in range(readers):
            stream = await trio.open_unix_socket(f"{path}.events")
            await stream.send_all(b'{"id":"s","type":"subscribe","payload":{}}\n')
            await stream.receive_some(4096)
            nursery.start_soon(read, stream)
        async with await trio.open_unix_socket(path) as stream:
            start = time.perf_counter()
            await stream.send_all(
                b'{"id":"1","type":"prompt","payload":{"text":"go","wait":false}}\n'
            )
            await finished.wait()
            return DELTAS / (time.perf_counter() - start)


async def burst() -> list[Row]:
    """A burst of deltas to 1, 8 and 32 subscribers, against a bare reader of the same model."""
    rows = []
    with process(PYTHON, __file__, "--stub") as stub:
        assert stub.stdout is not None
        api_base = stub.stdout.readline().strip()
        with folder() as place:
            flags = ("--provider", "openai", "--api-base", api_base, "--model", "m")
            async with daemon(place, *flags) as path:
                for readers in (1, 8, 32):
                    bare = statistics.median([await _read_bare(api_base) for _ in range(5)])
                    ours = statistics.median([await _burst(path, readers) for _ in range(5)])
                    rows.append(Row(f"burst to {readers}", ours, bare, "deltas/s"))
    return rows


def _run_time(*argv: str) -> float:
    """Returns the median time of 15 runs of a program, in milliseconds."""
    times = []
    for _ in range(15):
        start = time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


async def nousctl() -> list[Row]:
    """The shell client end to end, against the import of its command line library."""
    with folder() as place:
        async with daemon(place) as path:
            program = str(Path(PYTHON).parent / "nousctl")
            ours = _run_time(program, "--socket", str(path), "ping")
    return [Row("nousctl ping", ours, _run_time(PYTHON, "-c", "import typer"), "ms")]


async def start() -> list[Row]:
    """Cold start to the first pong, against the bare imports."""
    times = []
    for _ in range(9):
        with folder() as place:
            begun = time.perf_counter()
            async with daemon(place) as path, await trio.open_unix_socket(path) as stream:
                await stream.send_all(PING)
                await stream.receive_some(4096)
                times.append(time.perf_counter() - begun)
    bare = _run_time(PYTHON, "-c", "import trio, msgspec, apsw")
    return [Row("cold start to pong", statistics.median(times) * 1e3, bare, "ms")]


ROWS: dict[str, Callable[[], Awaitable[list[Row]]]] = {
    "ping": ping,
    "burst": burst,
    "nousctl": nousctl,
    "start": start,
}


def _table(rows: list[Row], before: dict[str, Any]) -> Iterator[str]:
    yield f"{'':24}{'nousd':>12}{'yardstick':>12}{'ratio':>8}{'before':>8}"
    for row in rows:
        old = before.get(row.name)
        earlier = f"{old['ratio']:8.2f}" if old else ""
        figures = f"{row.daemon:12,.1f}{row.yardstick:12,.1f}{row.ratio:8.2f}{earlier}"
        yield f"{row.name:24}{figures}  {row.unit}"


async def _measured(names: list[str]) -> list[Row]:
    return [row for name in names for row in await ROWS[name]()]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", nargs="*", help=", ".join(ROWS))
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--compare", type=Path, metavar="FILE")
    parser.add_argument("--echo", help=argparse.SUPPRESS)
    parser.add_argument("--stub", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.echo:
        trio.run(_serve_echo, args.echo)
    elif args.stub:
        trio.run(_serve_stub)
    else:
        unknown = set(args.rows) - set(ROWS)
        if unknown:
            parser.error(f"no such row: {', '.join(sorted(unknown))}")
        rows = trio.run(partial(_measured, args.rows or list(ROWS)))
        before = json.loads(args.compare.read_text()) if args.compare else {}
        print(*_table(rows, before), sep="\n")
        if args.json:
            figures = {row.name: {**row._asdict(), "ratio": row.ratio} for row in rows}
            args.json.write_text(json.dumps(figures, indent=1) + os.linesep)


if __name__ == "__main__":
    main()
