"""A mutation fuzzer on whole connections of the real daemon.

Faults are printed with their case, and the exit code is then 1; the bytes of the case are kept.

    scripts/fuzz                             one minute
    scripts/fuzz --seconds 3600 --seed 7     an hour of others
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fuzz.fuzz import Fuzz


def main() -> int:
    parser = argparse.ArgumentParser(description="Feed the daemon mutated conversations.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--cases", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="nousd-", dir="/tmp"))
    fuzz = Fuzz(folder, arguments.seed)
    trio.run(partial(fuzz.run, cases=arguments.cases, seconds=arguments.seconds))
    print(*fuzz.faults, fuzz.report(), sep="\n")
    if fuzz.faults:
        print(f"The cases, the state folder and the daemon's own log are kept: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
