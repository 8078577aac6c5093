"""Which runtime carries out the runs of a session."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nousd.config.runtimes_file import ConfiguredRuntime
from tests.daemon.agent_bench import AGENT, AgentBench, Halting, agent_daemon
from tests.daemon.scripted import says as model_says
from tests.harness.daemon import Event, of_type


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[AgentBench]:
    async with agent_daemon(tmp_path) as bench:
        yield bench


def runtime_of(run: list[Event]) -> str:
    (start,) = of_type(run, "agent_start")
    name: str = start["runtime"]
    return name


async def test_a_run_keeps_the_runtime_that_its_session_had_when_it_began(
    bench: AgentBench,
) -> None:
    act = Halting(takes=True)
    await bench.start(act)
    await act.waits.wait()
    for runtime in ("native", None):
        refused = await bench.client.refusal("set_runtime", runtime=runtime)
        assert refused["message"] == "run_in_progress"
    act.go_on.set()
    assert runtime_of(await bench.events.run()) == AGENT
    await bench.client.request("set_runtime", runtime=None)
    bench.provider.answer(model_says("hello"))
    await bench.start()
    start = of_type(run := await bench.events.run(), "agent_start")[0]
    assert runtime_of(run) == "native"
    assert "runtime_version" not in start


async def test_the_runtime_is_shown_and_a_branch_has_it_too(bench: AgentBench) -> None:
    assert (await bench.client.request("get_state"))["runtime"] == AGENT
    branch = await bench.client.request("branch_session", session_id=bench.session_id)
    shown = await bench.client.request("get_session", session_id=branch["session_id"])
    assert shown["session"]["runtime"] == AGENT
    listed = (await bench.client.request("list_sessions"))["sessions"]
    assert [row["runtime"] for row in listed] == [AGENT, AGENT]
    await bench.start()
    assert runtime_of(await bench.events.run()) == AGENT


async def test_a_new_session_does_not_take_over_the_runtime_of_another(bench: AgentBench) -> None:
    await bench.client.request("new_session")
    assert "runtime" not in await bench.client.request("get_state")


@pytest.mark.behaviour("a_sessions_namespace_stays")
async def test_a_namespace_is_the_sessions_for_good_and_its_branchs(bench: AgentBench) -> None:
    named = "user:anna@example.org"
    created = await bench.client.request("new_session", runtime=AGENT, runtime_namespace=named)
    branch = await bench.client.request("branch_session", session_id=created["session_id"])
    await bench.client.request("set_runtime", runtime=None)
    for session_id in (created["session_id"], branch["session_id"]):
        shown = await bench.client.request("get_session", session_id=session_id)
        assert shown["session"]["runtime_namespace"] == named
    assert (await bench.client.request("get_state"))["runtime_namespace"] == named
    await bench.client.request("new_session")
    assert "runtime_namespace" not in await bench.client.request("get_state")


@pytest.mark.parametrize(
    "namespace", ["user:", "users:a", "user:a/b", "user:a\n", "anna", "user:" + 65 * "a"]
)
async def test_what_is_no_namespace_is_refused(bench: AgentBench, namespace: str) -> None:
    for command in ("new_session", "get_auth_status"):
        key = "namespace" if command == "get_auth_status" else "runtime_namespace"
        refused = await bench.client.refusal(command, runtime=AGENT, **{key: namespace})
        assert refused["code"] == "invalid_payload"
        assert f"{key} must be" in refused["message"]


async def test_a_mistyped_runtime_is_refused_with_the_nearest(bench: AgentBench) -> None:
    for command in ("new_session", "set_runtime"):
        refused = await bench.client.refusal(command, runtime="pupet")
        assert refused["message"] == "runtime_unknown"
        assert refused["details"] == {"nearest": AGENT, "runtimes": ["native", AGENT]}


async def test_the_daemon_says_whether_it_finds_a_program(tmp_path: Path) -> None:
    def configured(program: str) -> ConfiguredRuntime:
        return ConfiguredRuntime(AGENT, "acp", (program, "--serve"))

    native = {"name": "native", "is_default": True}
    for program, found in ((sys.executable, {"program": sys.executable}), ("no-such-agent", {})):
        async with agent_daemon(tmp_path, configured_runtimes=(configured(program),)) as bench:
            listed = (await bench.client.request("get_runtimes"))["runtimes"]
        for each in listed:
            assert each.pop("capabilities")["supports_streaming"]
        assert listed == [
            native,
            {
                "name": AGENT,
                "is_default": False,
                "kind": "acp",
                "version": "1.2.3",
                "command": [program, "--serve"],
                "runtime_tools": "off",
                "isolation": "shared",
                "mode": "subprocess",
                **found,
            },
        ]
