"""Hooks around tool calls: their changes and blocks, and the events about them."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from nousd.daemon.policy.permissions import RulePermissions
from nousd.extensions.hooks import (
    BlockCall,
    ChangeArgs,
    ChangeResult,
    HookPayload,
    ToolCalled,
    ToolReturned,
)
from nousd.machine.policy.rules import rules_of
from nousd.runtimes.calls.admission import input_hash
from nousd.wire.limits import TOOL_PREVIEW_CHARS_MAX
from tests.daemon.hooks_bench import calls, failing, open_bench, warnings
from tests.daemon.scripted import says
from tests.extensions.registering import on
from tests.harness.daemon import Event, of_type

WRITE = calls("write", '{"path":"a.txt","content":"x"}')


def evaluations(run: list[Event]) -> list[tuple[str, str]]:
    return [
        (each["source"], each["decision"]) for each in of_type(run, "tool_call_policy_evaluated")
    ]


BEFORE_EXTENSIONS = [
    ("registry", "allow"),
    ("session", "allow"),
    ("arguments", "allow"),
    ("rules", "abstain"),
    ("mode", "allow"),
    ("runtime", "abstain"),
]


@pytest.mark.behaviour("extensions_are_a_source_of_policy")
async def test_a_call_that_a_hook_blocks_does_not_run(tmp_path: Path) -> None:
    seen: list[ToolCalled] = []

    def guard(call: ToolCalled) -> BlockCall:
        seen.append(call)
        return BlockCall("a.txt is made by the build")

    async with open_bench(tmp_path, on("tool_call", guard)) as bench:
        run = await bench.run(WRITE, says("I see"))
        result = bench.provider.requests[-1].messages[-1]
    assert not (tmp_path / "a.txt").exists()
    assert seen[0].tool == "write"
    assert seen[0].args.items() >= {"path": "a.txt", "content": "x"}.items()
    assert evaluations(run) == [*BEFORE_EXTENSIONS, ("extension", "deny")]
    [denied] = of_type(run, "tool_call_denied")
    assert denied["by"] == "extension"
    assert denied["reason"] == "tool_blocked: one: a.txt is made by the build"
    assert warnings(run) == [("tool_blocked", denied["reason"])]
    assert denied["reason"] in result.text
    assert of_type(run, "tool_call_started") == []


async def test_a_hook_without_an_objection_is_recorded_and_decides_nothing(tmp_path: Path) -> None:
    registers = [on("tool_call", lambda call: None), on("tool_call", lambda call: None)]
    async with open_bench(tmp_path, *registers) as bench:
        run = await bench.run(WRITE, says("done"))
    assert (tmp_path / "a.txt").read_text() == "x"
    assert evaluations(run) == [*BEFORE_EXTENSIONS, *[("extension", "abstain")] * 2]
    reasons = [each["reason"] for each in of_type(run, "tool_call_policy_evaluated")[-2:]]
    assert reasons == ["one: has no objection", "two: has no objection"]
    assert of_type(run, "tool_call_approved")[0]["by"] == "policy"
    [completed] = of_type(run, "tool_call_completed")
    sources = [each["source"] for each in completed["policy_snapshot"]["sources"]]
    assert sources[-2:] == ["extension", "extension"]


@pytest.mark.behaviour("extensions_change_calls_before_they_are_judged")
async def test_arguments_changed_by_a_hook_are_judged_hashed_and_run(tmp_path: Path) -> None:
    def elsewhere(call: ToolCalled) -> ChangeArgs:
        return ChangeArgs({**call.args, "path": "b.txt"})

    async with open_bench(tmp_path, on("tool_call", elsewhere)) as bench:
        run = await bench.run(WRITE, says("done"))
    assert not (tmp_path / "a.txt").exists()
    assert (tmp_path / "b.txt").read_text() == "x"
    [requested] = of_type(run, "tool_call_requested")
    assert requested["args"]["path"] == "a.txt"
    evaluation = of_type(run, "tool_call_policy_evaluated")[-1]
    assert (evaluation["source"], evaluation["reason"]) == (
        "extension",
        "one: changed the arguments",
    )
    assert evaluation["args"]["path"] == "b.txt"
    hashes = {event["payload"].get("input_hash") for event in run if "tool_" in event["type"]}
    assert hashes == {input_hash("write", evaluation["args"])}


@pytest.mark.parametrize("blocks", [False, True])
async def test_a_rule_judges_the_changed_arguments_and_both_decisions_are_recorded(
    tmp_path: Path, blocks: bool
) -> None:
    registers = [on("tool_call", lambda call: ChangeArgs({**call.args, "path": "b.txt"}))]
    if blocks:
        registers.append(on("tool_call", lambda call: BlockCall("not now")))
    rules = rules_of("deny", ("write(b.txt)",), "the settings")
    permissions = RulePermissions("yolo", rules)
    async with open_bench(tmp_path, *registers, permissions=permissions) as bench:
        run = await bench.run(WRITE, says("done"))
    assert not any((tmp_path / name).exists() for name in ("a.txt", "b.txt"))
    expected = [("rules", "deny"), ("extension", "abstain")]
    assert evaluations(run)[3:] == (expected if not blocks else [*expected, ("extension", "deny")])
    assert of_type(run, "tool_call_denied")[0]["by"] == "policy"


async def test_a_failing_hook_blocks_the_call_if_its_on_error_is_block(tmp_path: Path) -> None:
    async with open_bench(tmp_path, on("tool_call", failing, on_error="block")) as bench:
        run = await bench.run(WRITE, says("done"))
    assert not (tmp_path / "a.txt").exists()
    assert of_type(run, "tool_call_denied")[0]["by"] == "extension"
    assert warnings(run) == [
        ("extension_hook_error", "one: tool_call: ValueError: no idea"),
        ("tool_blocked", "tool_blocked: one: tool_call: ValueError: no idea"),
    ]


async def test_long_arguments_from_a_hook_are_stored_as_an_artifact(tmp_path: Path) -> None:
    long = {"path": "a.txt", "content": "y" * 100_000}
    async with open_bench(tmp_path, on("tool_call", lambda call: ChangeArgs(long))) as bench:
        run = await bench.run(WRITE, says("done"))
        evaluation = of_type(run, "tool_call_policy_evaluated")[-1]
        assert evaluation["args_bytes"] > 100_000
        kept = await bench.client.request("get_artifact", artifact_id=evaluation["args_ref"])
        assert kept["size_bytes"] == evaluation["args_bytes"]
    assert (tmp_path / "a.txt").stat().st_size == 100_000


@pytest.mark.behaviour("an_extension_may_change_a_result")
async def test_the_model_receives_the_result_changed_by_a_hook_and_the_original_is_stored(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_text("the word is swordfish\n")
    seen: list[ToolReturned] = []

    def redact(returned: ToolReturned) -> ChangeResult:
        seen.append(returned)
        return ChangeResult(returned.text.replace("swordfish", "[hidden]"))

    async with open_bench(tmp_path, on("tool_result", redact)) as bench:
        run = await bench.run(calls("read", '{"path":"a.txt"}'), says("done"))
        result = bench.provider.requests[-1].messages[-1]
        [end] = of_type(run, "tool_execution_end")
        kept = await bench.client.request("get_artifact", artifact_id=end["artifact_id"])
    assert "swordfish" in seen[0].text
    assert seen[0].args["path"] == "a.txt"
    assert "[hidden]" in result.text
    assert "swordfish" not in result.text
    assert (end["changed_by"], end["is_error"]) == (["one"], False)
    assert "swordfish" not in end["result"]
    assert of_type(run, "tool_call_completed")[0]["changed_by"] == ["one"]
    assert b"swordfish" in base64.b64decode(kept["data"])


async def test_a_hook_sees_a_failed_call_and_may_turn_it_into_a_success(tmp_path: Path) -> None:
    seen: list[ToolReturned] = []

    def soften(returned: ToolReturned) -> ChangeResult:
        seen.append(returned)
        return ChangeResult("there is no such file yet", is_error=False)

    async with open_bench(tmp_path, on("tool_result", soften)) as bench:
        run = await bench.run(calls("read", '{"path":"none.txt"}'), says("done"))
    assert seen[0].is_error
    [end] = of_type(run, "tool_execution_end")
    assert (end["result"], end["is_error"]) == ("there is no such file yet", False)


async def test_a_result_that_a_hook_made_too_long_is_truncated(tmp_path: Path) -> None:
    async with open_bench(
        tmp_path, on("tool_result", lambda _: ChangeResult("x" * 1_000_000))
    ) as bench:
        run = await bench.run(calls("ls", "{}"), says("done"))
        result = bench.provider.requests[-1].messages[-1]
    [end] = of_type(run, "tool_execution_end")
    assert len(end["result"]) == TOOL_PREVIEW_CHARS_MAX
    assert len(result.text) < 60_000


async def test_invalid_calls_reach_no_hook(tmp_path: Path) -> None:
    seen: list[HookPayload] = []
    registers = [on("tool_call", seen.append), on("tool_result", seen.append)]
    async with open_bench(tmp_path, *registers) as bench:
        run = await bench.run(calls("write", "{}"), calls("none", "{}"), says("done"))
    assert seen == []
    assert len(of_type(run, "tool_call_denied")) == 2


async def test_client_calls_go_through_the_same_hooks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[ToolCalled] = []

    def guard(call: ToolCalled) -> BlockCall | None:
        seen.append(call)
        return BlockCall("not that file") if call.args["path"] == "a.txt" else None

    registers = [on("tool_call", guard), on("tool_result", failing)]
    async with open_bench(tmp_path, *registers) as bench:
        await bench.client.request("new_session")
        for path, outcome in (("a.txt", "tool_call_denied"), ("b.txt", "tool_call_completed")):
            args = {"path": path, "content": "x"}
            call = await bench.client.request("call_tool", tool="write", args=args)
            end = await bench.events.until(outcome, tool_call_id=call["tool_call_id"])
            assert end["payload"].get("by") == ("extension" if path == "a.txt" else None)
    assert (tmp_path / "b.txt").exists()
    assert not (tmp_path / "a.txt").exists()
    assert [(call.run_id, call.turn_id, call.tool) for call in seen] == [("", "", "write")] * 2
    assert "two: tool_result: ValueError: no idea" in caplog.text


async def test_the_calls_of_a_task_go_through_the_same_hooks(tmp_path: Path) -> None:
    seen: list[ToolCalled] = []

    def guard(call: ToolCalled) -> BlockCall | None:
        seen.append(call)
        return BlockCall("not here") if call.tool == "write" else None

    task = '{"tasks": [{"prompt": "write it", "description": "w"}]}'
    async with open_bench(tmp_path, on("tool_call", guard)) as bench:
        await bench.run(calls("task", task), WRITE, says("I could not"), says("done"))
    assert [call.tool for call in seen] == ["task", "write"]
    assert seen[0].session_id != seen[1].session_id
    assert not (tmp_path / "a.txt").exists()
