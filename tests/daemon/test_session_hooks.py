"""Hooks before a session switch or branch: they may cancel it, and their errors are warnings."""

from __future__ import annotations

from pathlib import Path

import pytest

from nousd.extensions.hooks import (
    Cancel,
    HookPayload,
    SessionForking,
    SessionSwitching,
)
from nousd.store.memory import store as memory
from tests.daemon.hooks_bench import failing, open_bench
from tests.daemon.scripted import ScriptedProvider
from tests.extensions.registering import on
from tests.harness.daemon import memory_daemon


@pytest.mark.behaviour("an_extension_may_keep_a_session")
async def test_a_hook_can_cancel_a_session_switch_or_branch(tmp_path: Path) -> None:
    payloads: list[HookPayload] = []

    def cancel(facts: SessionSwitching | SessionForking) -> Cancel:
        payloads.append(facts)
        return Cancel("finish this first")

    provider = ScriptedProvider()
    async with memory.open_store() as store:
        async with memory_daemon(workdir=tmp_path, provider=provider, store=store) as daemon:
            client = await daemon.connect()
            one = (await client.request("new_session"))["session_id"]
            two = (await client.request("new_session"))["session_id"]
        registers = [on("session_before_switch", cancel), on("session_before_fork", cancel)]
        async with open_bench(tmp_path, *registers, store=store) as bench:
            refusals = [
                await bench.client.refusal("switch_session", session_id=one),
                await bench.client.refusal("new_session"),
                await bench.client.refusal("branch_session", session_id=one),
            ]
            assert len((await bench.client.request("list_sessions"))["sessions"]) == 2
            assert (await bench.client.request("get_state"))["session_id"] == two
    assert refusals == [
        {
            "code": "command_rejected",
            "message": "cancelled_by_extension",
            "cause": f"{name}: finish this first",
        }
        for name in ("one", "one", "two")
    ]
    assert payloads == [
        SessionSwitching(session_id=two, to_session_id=one),
        SessionSwitching(session_id=two, to_session_id=""),
        SessionForking(session_id=one, leaf_id=""),
    ]


async def test_a_failing_hook_does_not_prevent_a_switch_or_branch_and_is_a_warning(
    tmp_path: Path,
) -> None:
    registers = [on("session_before_switch", failing), on("session_before_fork", failing)]
    async with open_bench(tmp_path, *registers) as bench:
        one = await bench.client.request("new_session")
        again = await bench.client.request("switch_session", session_id=one["session_id"])
        branch = await bench.client.request("branch_session", session_id=one["session_id"])
    messages = [answer["warnings"][0]["message"] for answer in (one, again, branch)]
    assert messages == [
        "one: session_before_switch: ValueError: no idea",
        "one: session_before_switch: ValueError: no idea",
        "two: session_before_fork: ValueError: no idea",
    ]
