"""Hooks: their arguments, return values and order, and the effect of failing ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from nousd.errors import ConfigError, ToolArgumentsInvalid
from nousd.extensions.api import HOOKS_MAX, ExtensionApi
from nousd.extensions.calls import THREADS_MAX
from nousd.extensions.hook_chain import Failure
from nousd.extensions.hooks import (
    HOOKS,
    INSTRUCTIONS_CHARS_MAX,
    REASON_CHARS_MAX,
    AddInstructions,
    BlockCall,
    Cancel,
    ChangeArgs,
    ChangeInput,
    ChangeResult,
    HandleInput,
    InputGiven,
    RunBeginning,
    SessionForking,
    ToolCalled,
    ToolReturned,
    TurnEnding,
    validate_answer,
)
from nousd.wire.limits import TEXT_CHARS_MAX, TOOL_ARGUMENTS_CHARS_MAX
from tests.extensions.registering import Register, hooks
from tests.harness.daemon import WAIT_SECONDS

INPUT = InputGiven(session_id="sess-1", run_id="", kind="prompt", text="hello", attachments=0)
BEGINNING = RunBeginning(
    session_id="sess-1", run_id="run-1", kind="prompt", provider="mock", model="mock"
)
FORKING = SessionForking(session_id="sess-1", leaf_id="msg-1")


def called(**args: Any) -> ToolCalled:
    return ToolCalled(
        session_id="sess-1",
        run_id="run-1",
        turn_id="1",
        tool_call_id="msg-1.0",
        tool="write",
        args=args,
    )


def returned(text: str, **args: Any) -> ToolReturned:
    facts = msgspec.structs.asdict(called(**args))
    return ToolReturned(**facts, text=text, is_error=False)


def validate_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    if "path" not in args:
        raise ToolArgumentsInvalid("validation_failed: path is missing")
    return {"mode": "w", **args}


async def sleep_forever(_told: object) -> None:
    await trio.sleep_forever()


def failing(_told: object) -> None:
    raise ValueError("no idea")


# --- registering ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("register", "reason"),
    [
        (lambda api: api.hook("input", None), "has a handler that cannot be called"),
        (
            lambda api: api.hook("on_input", print),
            "hook on_input does not exist; there are input, ",
        ),
        (lambda api: api.hook("input", print, timeout_seconds=0), "timeout_seconds must be more"),
        (
            lambda api: api.hook("tool_call", print, on_error="deny"),
            "hook tool_call: on_error must be allow or block",
        ),
        (
            lambda api: api.hook("tool_result", print, on_error="block"),
            "on_error is for the hook tool_call alone",
        ),
    ],
)
def test_an_invalid_hook_is_refused_on_registration(register: Register, reason: str) -> None:
    with pytest.raises(ConfigError, match="extension one: ") as caught:
        hooks(register)
    assert reason in str(caught.value)


def test_an_extension_has_a_limited_number_of_hooks() -> None:
    def register(api: ExtensionApi, count: int) -> None:
        for _ in range(count):
            api.hook("input", print)

    hooks(lambda api: register(api, HOOKS_MAX), lambda api: register(api, HOOKS_MAX))
    with pytest.raises(ConfigError, match=f"at most {HOOKS_MAX} hooks"):
        hooks(lambda api: register(api, HOOKS_MAX + 1))


def test_the_timeouts_of_all_handlers_of_a_hook_are_added_up() -> None:
    all_hooks = hooks(
        lambda api: api.hook("input", print, timeout_seconds=2),
        lambda api: api.hook("input", print, timeout_seconds=0.5),
    )
    assert all_hooks.seconds_max("input") == 2.5
    assert all_hooks.seconds_max("tool_call") == 0
    assert (all_hooks.has("input"), all_hooks.has("tool_call")) == (True, False)


async def test_hooks_without_handlers_do_not_even_checkpoint() -> None:
    none = hooks()
    with trio.testing.assert_no_checkpoints():
        assert (await none.input(INPUT)).text == "hello"
        assert await none.before_run(BEGINNING) == ((), ())
        assert (
            await none.tell("turn_end", TurnEnding(session_id="s", run_id="r", turn_id="1")) == ()
        )
        assert await none.tool_call(called(path="a"), validate_args) == ((), ())
        assert (await none.tool_result(returned("x"))).text == "x"
        assert await none.may("session_before_fork", FORKING) == (None, ())


# --- return values -------------------------------------------------------------------------------


async def test_each_handler_changes_the_input_in_turn() -> None:
    outcome = await hooks(
        lambda api: api.hook("input", lambda given: ChangeInput(f"{given.text} 1")),
        lambda api: api.hook("input", lambda given: None),
        lambda api: api.hook("input", lambda given: ChangeInput(f"{given.text} 3")),
    ).input(INPUT)
    assert (outcome.text, outcome.changed_by) == ("hello 1 3", ("one", "three"))
    assert outcome.handled_by == ""


async def test_a_handled_input_is_not_passed_to_later_handlers() -> None:
    seen: list[str] = []

    async def handle(given: InputGiven) -> HandleInput:
        return HandleInput(f"I did {given.text}")

    outcome = await hooks(
        lambda api: api.hook("input", handle),
        lambda api: api.hook("input", lambda given: seen.append(given.text)),
    ).input(INPUT)
    assert (outcome.handled_by, outcome.reply) == ("one", "I did hello")
    assert seen == []


async def test_a_run_gets_the_instructions_of_every_handler() -> None:
    outcome = await hooks(
        lambda api: api.hook("before_run", lambda run: AddInstructions(f"in {run.run_id}")),
        lambda api: api.hook("before_run", lambda run: AddInstructions(run.model)),
    ).before_run(BEGINNING)
    assert outcome.added == (("one", "in run-1"), ("two", "mock"))


async def test_each_handler_sees_the_changed_and_revalidated_arguments() -> None:
    seen: list[dict[str, Any]] = []
    outcome = await hooks(
        lambda api: api.hook("tool_call", lambda call: ChangeArgs({"path": "b"})),
        lambda api: api.hook("tool_call", lambda call: seen.append(call.args)),
    ).tool_call(called(path="a"), validate_args)
    assert outcome.verdicts == (
        ("one", False, "changed the arguments", {"path": "b", "mode": "w"}),
        ("two", False, "has no objection", None),
    )
    assert seen == [{"path": "b", "mode": "w"}]


async def test_a_blocked_call_is_not_passed_to_later_handlers() -> None:
    seen: list[str] = []
    outcome = await hooks(
        lambda api: api.hook("tool_call", lambda call: BlockCall("not that file")),
        lambda api: api.hook("tool_call", lambda call: seen.append(call.tool)),
    ).tool_call(called(path="a"), validate_args)
    assert outcome.verdicts == (("one", True, "not that file", None),)
    assert seen == []


async def test_a_handler_has_its_own_copy_of_the_arguments() -> None:
    kept: list[ToolCalled] = []

    def spoil(call: ToolCalled) -> None:
        call.args["lines"].append("spoilt")
        kept.append(call)

    ours = called(path="a", lines=["x"])
    answer = {"path": "b", "lines": ["y"]}
    all_hooks = hooks(
        lambda api: api.hook("tool_call", spoil),
        lambda api: api.hook("tool_call", lambda call: ChangeArgs(answer)),
        lambda api: api.hook("tool_call", spoil),
    )
    outcome = await all_hooks.tool_call(ours, validate_args)
    answer["lines"].append("later")  # type: ignore[attr-defined]
    assert ours.args["lines"] == ["x"]
    assert outcome.verdicts[1].args == {"path": "b", "lines": ["y"], "mode": "w"}
    assert len(kept) == 2


async def test_each_handler_changes_the_result_in_turn() -> None:
    outcome = await hooks(
        lambda api: api.hook("tool_result", lambda call: ChangeResult(f"{call.text}!")),
        lambda api: api.hook("tool_result", lambda call: ChangeResult(call.text, is_error=True)),
        lambda api: api.hook("tool_result", lambda call: ChangeResult(f"{call.is_error}")),
    ).tool_result(returned("x"))
    assert outcome == ("True", True, ("one", "two", "three"), ())


async def test_the_extension_that_cancels_is_named() -> None:
    outcome = await hooks(
        lambda api: api.hook("session_before_fork", lambda fork: None),
        lambda api: api.hook("session_before_fork", lambda fork: Cancel(f"not at {fork.leaf_id}")),
    ).may("session_before_fork", FORKING)
    assert outcome.cancelled == ("two", "not at msg-1")


# --- failures ------------------------------------------------------------------------------------


async def test_a_hook_that_raises_is_reported_and_the_next_one_runs() -> None:
    outcome = await hooks(
        lambda api: api.hook("input", failing),
        lambda api: api.hook("input", lambda given: ChangeInput("changed")),
    ).input(INPUT)
    assert outcome.text == "changed"
    assert outcome.failures == (Failure("extension_hook_error", "one: input: ValueError: no idea"),)


async def test_an_async_hook_that_times_out_is_reported(
    autojump_clock: trio.testing.MockClock,
) -> None:
    all_hooks = hooks(lambda api: api.hook("input", sleep_forever, timeout_seconds=3))
    outcome = await all_hooks.input(INPUT)
    assert trio.current_time() == 3
    assert outcome.failures == (
        Failure("extension_timeout", "one: input: did not return within 3 seconds"),
    )


async def test_a_blocking_hook_that_does_not_stop_is_abandoned_and_reported() -> None:
    release = threading.Event()

    def hang(_given: InputGiven) -> None:
        release.wait(20)

    def register(api: ExtensionApi) -> None:
        for _ in range(THREADS_MAX + 1):
            api.hook("input", hang, timeout_seconds=0.01)

    all_hooks = hooks(register)
    try:
        with trio.fail_after(WAIT_SECONDS):
            failures = (await all_hooks.input(INPUT)).failures
    finally:
        release.set()
    assert [failure.code for failure in failures] == ["extension_timeout"] * (THREADS_MAX + 1)
    assert failures[0].message == (
        "one: input: did not return within 0.01 seconds; it was abandoned, and its thread keeps one of "
        f"the extension's {THREADS_MAX} places until it ends"
    )
    assert failures[-1].message == (
        "one: input: found no free thread within 0.01 seconds: all 8 of the extension are held by "
        "functions that have not returned"
    )


@pytest.mark.parametrize(("on_error", "blocks"), [("allow", False), ("block", True)])
@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (failing, "one: tool_call: ValueError: no idea"),
        (
            lambda call: "no",
            "one: tool_call: returned str; it must be None or BlockCall or ChangeArgs",
        ),
        (
            lambda call: ChangeArgs({"pth": "x"}),
            "one: tool_call: changed the arguments: validation_failed: path is missing",
        ),
    ],
)
async def test_on_error_decides_if_a_failing_tool_call_hook_blocks(
    handler: Callable[..., Any], message: str, on_error: Any, blocks: bool
) -> None:
    all_hooks = hooks(lambda api: api.hook("tool_call", handler, on_error=on_error))
    outcome = await all_hooks.tool_call(called(path="a"), validate_args)
    assert outcome.verdicts == (("one", blocks, message, None),)
    assert outcome.failures == (Failure("extension_hook_error", message),)


class Unwritable:
    pass


def deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("name", "answer", "reason"),
    [
        ("input", "text", "returned str; it must be None or ChangeInput or HandleInput"),
        (
            "input",
            BlockCall("no"),
            "returned BlockCall; it must be None or ChangeInput or HandleInput",
        ),
        ("turn_end", Cancel("no"), "returned Cancel; it must be None"),
        ("input", ChangeInput(5), "Expected `str`, got `int` - at `$.text`"),  # type: ignore[arg-type]
        ("input", ChangeInput(" \n"), "Expected `str` matching regex"),
        ("input", ChangeInput("x" * (TEXT_CHARS_MAX + 1)), "Expected `str` of length <= 4194304"),
        ("tool_call", BlockCall(""), "Expected `str` of length >= 1"),
        ("tool_call", BlockCall("x" * (REASON_CHARS_MAX + 1)), "Expected `str` of length <= 2000"),
        ("tool_call", ChangeArgs({"a": Unwritable()}), "Encoding objects of type Unwritable"),
        ("tool_call", ChangeArgs([]), "Expected `object`, got `array`"),  # type: ignore[arg-type]
        ("tool_call", ChangeArgs({"a": deep(300)}), "nested deeper than 256 levels"),
        (
            "tool_call",
            ChangeArgs({"a": "x" * TOOL_ARGUMENTS_CHARS_MAX}),
            "more than 4194304 bytes of arguments",
        ),
        (
            "before_run",
            AddInstructions("x" * (INSTRUCTIONS_CHARS_MAX + 1)),
            "Expected `str` of length <= 65536",
        ),
        ("tool_result", ChangeResult("\ud800"), "surrogates not allowed"),
    ],
)
def test_an_invalid_answer_is_refused_with_the_reason(name: Any, answer: Any, reason: str) -> None:
    from nousd.errors import ExtensionError

    with pytest.raises(ExtensionError) as caught:
        validate_answer(name, answer)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("input", ChangeInput("x" * TEXT_CHARS_MAX)),
        ("input", HandleInput()),
        ("tool_call", BlockCall("x" * REASON_CHARS_MAX)),
        ("tool_call", ChangeArgs({"a": deep(250), "b": "x" * (TOOL_ARGUMENTS_CHARS_MAX - 1000)})),
        ("before_run", AddInstructions("x" * INSTRUCTIONS_CHARS_MAX)),
        ("tool_result", ChangeResult("", is_error=False)),
        ("turn_start", None),
    ],
)
def test_an_answer_at_its_limits_is_accepted(name: Any, answer: Any) -> None:
    assert validate_answer(name, answer) == answer


def test_there_are_exactly_nine_hooks() -> None:
    assert list(HOOKS) == [
        "input",
        "before_run",
        "turn_start",
        "turn_end",
        "tool_call",
        "tool_result",
        "run_end",
        "session_before_switch",
        "session_before_fork",
    ]
