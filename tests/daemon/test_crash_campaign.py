"""A short crash campaign on the real daemon; ``scripts/crash`` runs longer ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.crash.campaign import Campaign

ROUNDS = 6
SECONDS_MAX = 120
"""A bound for a machine that is busy; it takes a few seconds."""


@pytest.mark.slow
async def test_nothing_that_clients_received_is_lost_when_the_daemon_is_killed(
    short_folder: Path,
) -> None:
    campaign = Campaign(short_folder, seed=1)
    with trio.fail_after(SECONDS_MAX):
        for _ in range(ROUNDS):
            await campaign.round()
        await campaign.finish()
    assert campaign.violations == []
    assert campaign.kills >= ROUNDS / 2, campaign.counts()
    assert campaign.world.record.inputs.accepted, campaign.counts()


async def test_the_campaign_reports_a_leftover_process(short_folder: Path) -> None:
    campaign = Campaign(short_folder, seed=1, gone_seconds=0)
    left = await trio.lowlevel.open_process(["sleep", "1000"], cwd=short_folder)
    try:
        await campaign.finish()
    finally:
        left.kill()
        await left.wait()
    assert [str(left.pid) in violation for violation in campaign.violations] == [True]
