"""A soak on the real daemon: sessions that run all the time, readers that stall and come back.

Prints figures and faults; the exit code is 1 if there was a fault.

    scripts/soak                             five minutes, 50 sessions, 200 connections
    scripts/soak --seconds 3600 --seed 7     an hour of others
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.soak.soak import Soak


def main() -> int:
    parser = argparse.ArgumentParser(description="Load the daemon for long and watch its figures.")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="nousd-", dir="/tmp"))
    soak = Soak(folder, **vars(arguments))
    trio.run(soak.run)
    print(*soak.faults, soak.report(), sep="\n")
    if soak.faults:
        print(f"The state folder and the daemon's own log are kept: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
