"""The bare parts that run in the client's process: a commit, a POST, a reader of the model, imports."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import apsw
import httpx2
import msgspec

from .programs import PYTHON, ROOT, Measure


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


_decoder = msgspec.json.Decoder(_Chunk)


class BareModelClient:
    """httpx2 and msgspec, one connection to the model stub, nothing kept and nothing checked."""

    def __init__(self, client: httpx2.AsyncClient, api_base: str) -> None:
        self._client = client
        self._url = f"{api_base}/chat/completions"

    async def deltas(self, text: str, *, padding: int = 0) -> list[str]:
        """Make one streaming call and return its deltas.

        Args:
            padding: bytes that come before the text in the request.
        """
        messages = [{"role": "system", "content": "." * padding}, {"role": "user", "content": text}]
        deltas: list[str] = []
        rest = b""
        async with self._client.stream("POST", self._url, json={"messages": messages}) as response:
            async for chunk in response.aiter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                deltas += [
                    piece
                    for line in lines
                    if line.startswith(b"data: {")
                    for choice in _decoder.decode(line[6:]).choices
                    if (piece := choice.delta.content or choice.delta.reasoning_content)
                ]
        return deltas

    async def burst_rate(self, text: str) -> float:
        """Return the deltas per second at which a burst that was asked for was read."""
        start = time.perf_counter()
        read = len(await self.deltas(text))
        return read / (time.perf_counter() - start)

    async def post_us(self, *, padding: int) -> float:
        """Return the time from the call until the stub has the whole request."""
        start = time.monotonic_ns()
        (arrived,) = await self.deltas("stamp", padding=padding)
        return (int(arrived) - start) / 1e3


@asynccontextmanager
async def bare_model_client(api_base: str) -> AsyncIterator[BareModelClient]:
    """Give a client of the stub that has made its connection."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        bare = BareModelClient(client, api_base)
        await bare.deltas("hello")
        yield bare


@contextmanager
def bare_commits(place: Path, *, at_once: int) -> Iterator[Measure]:
    """Give the time, in microseconds, of a commit of one row with fsync: the median of so many, made
    one right after the other.
    """
    connection = apsw.Connection(str(place / "bare.sqlite"))
    connection.pragma("journal_mode", "WAL")
    connection.pragma("synchronous", "FULL")
    connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, line BLOB)")

    async def commit_us() -> float:
        times = []
        for _ in range(at_once):
            start = time.perf_counter()
            with connection:
                connection.execute("INSERT INTO rows (line) VALUES (?)", (b"x" * 200,))
            times.append(time.perf_counter() - start)
        return statistics.median(times) * 1e6

    try:
        yield commit_us
    finally:
        connection.close()


def program(*argv: str) -> Measure:
    """Return the measure of one run of a program, from its start to its end, in milliseconds."""

    async def run_ms() -> float:
        start = time.perf_counter()
        # The client has nothing else to do meanwhile.
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)  # noqa: ASYNC221
        return (time.perf_counter() - start) * 1e3

    return run_ms


imports_of = partial(program, PYTHON, "-c")
