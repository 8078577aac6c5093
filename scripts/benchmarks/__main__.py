"""Figures as ratios: each row measures the daemon beside bare parts, in turns, in one run.

scripts/bench                      all rows, as a table
scripts/bench ping burst           these groups of rows
scripts/bench --json new.json      also as JSON
scripts/bench --compare old.json   with the change since then
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from . import (
    accepting,
    agents,
    answering,
    bridging,
    calling,
    calling_widely,
    long_sessions,
    memory,
    peers,
    ping,
    prompting,
    starting,
    streaming,
)
from .report import Missing, Row, as_json, table

GROUPS: Final[dict[str, Callable[[], Awaitable[Sequence[Row | Missing]]]]] = {
    "ping": ping.rows,
    "burst": streaming.bursts,
    "latency": streaming.latency,
    "prompt": prompting.rows,
    "long": long_sessions.rows,
    "large": long_sessions.large,
    "calls": calling.rows,
    "wide": calling_widely.rows,
    "answer": answering.rows,
    "accept": accepting.rows,
    "start": starting.rows,
    "nousctl": starting.nousctl,
    "memory": memory.rows,
    "both": memory.both,
    "endless": memory.endless,
    "http": bridging.requests,
    "sse": bridging.streams,
    "agents": agents.rows,
    "peers": peers.rows,
}


async def _measure(names: list[str]) -> list[Row | Missing]:
    rows: list[Row | Missing] = []
    for name in names:
        print(f"measuring {name} ...", file=sys.stderr)
        rows += await GROUPS[name]()
    return rows


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here too")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="the JSON of an earlier run")
    args = parser.parse_args()
    unknown = set(args.groups) - set(GROUPS)
    if unknown:
        parser.error(f"no such group: {', '.join(sorted(unknown))}")
    earlier: dict[str, Any] = {}
    if args.compare:
        earlier = json.loads(args.compare.read_text())["rows"]
    # What was started is stopped by a kill as well: as at Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    rows = trio.run(partial(_measure, args.groups or list(GROUPS)))
    print(*table(rows, earlier), sep="\n")
    if args.json:
        args.json.write_text(as_json(rows))


if __name__ == "__main__":
    main()
