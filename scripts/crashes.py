"""A crash campaign on the real daemon: load, kill -9, start, check, again.

Violations are printed with their round and seed, and the exit code is then 1.

    scripts/crash                                    100 rounds
    scripts/crash --rounds 500 --seed 7              others
    scripts/crash --rounds 100000 --seconds-max 600  as many as ten minutes hold
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.crash.campaign import Campaign


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill the daemon under load and check its log.")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds-max", type=float, default=3600.0)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="nousd-", dir="/tmp"))
    campaign = Campaign(folder, arguments.seed)
    try:
        trio.run(_play, campaign, arguments.rounds, arguments.seconds_max)
    finally:
        print(*campaign.violations, campaign.counts(), sep="\n")
    if campaign.violations:
        print(f"The state folder and the daemon's own log are kept: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


async def _play(campaign: Campaign, rounds: int, seconds_max: float) -> None:
    deadline = time.monotonic() + seconds_max
    while campaign.rounds < rounds and time.monotonic() < deadline:
        await campaign.round()
    await campaign.finish()


if __name__ == "__main__":
    sys.exit(main())
