"""A model, a tool, an MCP server or an extension repeats a key that the daemon holds: nobody hears it,
and it is nowhere in the log, however it is cut into pieces.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from nousd.daemon.policy.permissions import RulePermissions
from nousd.errors import ProviderError
from nousd.extensions.hooks import AddInstructions, BlockCall, ChangeArgs, ChangeInput, ChangeResult
from nousd.machine.context.model_input import AssistantMessage
from nousd.providers.interface import (
    Piece,
    Provider,
    ReasoningDelta,
    ReasoningKept,
    Receive,
    TextDelta,
    ToolCallPiece,
)
from nousd.redaction.redactor import REDACTED, Redactor
from nousd.runtimes.native.loop import NativeSettings
from nousd.tools.interface import ToolContext, ToolResult
from nousd.wire.limits import TOOL_UPDATES_BYTES_MAX
from nousd.wire.objects.entries import ReasoningBlock
from tests.daemon.mcp_bench import SPEC, daemon_with_mcp
from tests.daemon.scripted import (
    Outcome,
    ScriptedProvider,
    ScriptedTool,
    emits,
    fails,
    gives,
    says,
    streams,
)
from tests.extensions.registering import hooks, on
from tests.harness.daemon import (
    WAIT_SECONDS,
    Client,
    Event,
    Events,
    memory_daemon,
    of_type,
    socket_daemon,
)
from tests.harness.stub_model import StubModel

KEY: Final = "sk-repeated/0123456789+abc"
"""Written differently in a URL and by some encoders of JSON."""

SHORT_KEY: Final = "ollama-key1"


@dataclass
class Kit:
    """A daemon that holds the keys, with its scripted model and tool, and all that was heard of it."""

    client: Client
    events: Events
    provider: ScriptedProvider
    tool: ScriptedTool
    heard: list[Any]

    async def ask(self, type: str, **payload: Any) -> dict[str, Any]:
        answer = await self.client.answer(await self.client.ask(type, **payload))
        self.heard.append(answer)
        told: dict[str, Any] = answer["payload"]
        return told

    async def run(self, *outcomes: Outcome) -> list[Event]:
        self.provider.answer(*outcomes)
        await self.ask("prompt", text="go", wait=True)
        run = await self.events.run()
        self.heard += run
        return run

    async def read_back(self) -> None:
        for command in ("get_messages", "get_state", "list_sessions", "list_runs", "get_events"):
            await self.ask(command)


@asynccontextmanager
async def memory_kit(folder: Path, **options: Any) -> AsyncIterator[Kit]:
    """Provide a kit in memory. What it heard holds no key."""
    provider, tool = ScriptedProvider(), ScriptedTool()
    options = {"secrets": Redactor([KEY, SHORT_KEY]), "tools": (tool.tool,), **options}
    async with memory_daemon(workdir=folder, provider=provider, **options) as daemon:
        events = await daemon.watch(types="all", confirms=True)
        kit = Kit(await daemon.connect(), events, provider, tool, [])
        with trio.fail_after(WAIT_SECONDS):
            yield kit
            await kit.read_back()
    assert KEY not in repr(kit.heard)


def splits(text: str) -> list[tuple[str, str]]:
    return [(text[:at], text[at:]) for at in range(1, len(text))]


def called(args: Any, name: str = "work", id: str = "own-1") -> ToolCallPiece:
    return ToolCallPiece(id, name, args if isinstance(args, str) else json.dumps(args))


# --- what a model says ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.behaviour("keys_that_models_repeat_are_removed")
async def test_a_key_that_a_model_repeats_is_told_to_nobody_and_stored_nowhere(
    short_folder: Path,
) -> None:
    provider, tool = ScriptedProvider(), ScriptedTool()
    secrets = Redactor([KEY])
    heard: list[bytes] = []
    async with socket_daemon(
        short_folder, provider=provider, secrets=secrets, tools=(tool.tool,)
    ) as daemon:
        client, events = await daemon.connect(), await daemon.watch(types="all")
        for begin, end in [(KEY, ""), *splits(KEY)]:
            pieces: list[Piece] = []
            for kind in (TextDelta, ReasoningDelta):
                pieces += [kind("It is "), kind(begin), kind(end), kind(", as I said.")]
            pieces = [piece for piece in pieces if getattr(piece, "text", "")]
            call = called({"note": f"{begin}{end}", f"{KEY}": [KEY]})
            provider.answer(streams(*pieces, call), says("I see ", begin, end))
            tool.finish(gives())
            request_id = await client.ask("prompt", text="go", wait=True)
            heard.append(await client.receive_line())
            assert request_id.encode() in heard[-1]
            while b'"agent_end"' not in (line := await events.receive_line()):
                heard.append(line)
        for command in ("get_messages", "get_state", "get_events", "list_sessions"):
            await client.ask(command)
            heard.append(await client.receive_line())
        assert_nowhere(heard, short_folder)
    assert_nowhere(heard, short_folder)
    assert sum(line.count(REDACTED.encode()) for line in heard) > 5 * len(KEY)
    assert KEY not in repr(provider.requests)


def assert_nowhere(heard: list[bytes], folder: Path) -> None:
    stored = [path.read_bytes() for path in folder.glob("nousd.db*")]
    assert stored
    for data in (*heard, *stored):
        assert KEY.encode() not in data
        assert json.dumps(KEY)[1:-1].replace("/", "\\/").encode() not in data


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("kind", [TextDelta, ReasoningDelta])
async def test_a_key_is_found_wherever_it_is_cut_into_deltas(
    tmp_path: Path, kind: Callable[[str], TextDelta | ReasoningDelta]
) -> None:
    type = "message_update" if kind is TextDelta else "reasoning_update"
    async with memory_kit(tmp_path) as kit:
        for parts in [*splits(KEY), tuple(KEY)]:
            run = await kit.run(streams(kind("a "), *map(kind, parts), kind(" b")))
            assert "".join(update["delta"] for update in of_type(run, type)) == f"a {REDACTED} b"
            entry = of_type(run, "entry_appended")[-1]["entry"]
            told = entry["text"] if kind is TextDelta else entry["reasoning"]
            assert told == f"a {REDACTED} b"


@pytest.mark.parametrize("kind", [TextDelta, ReasoningDelta])
async def test_a_delta_waits_only_while_its_end_may_begin_a_key(
    tmp_path: Path, kind: type[TextDelta | ReasoningDelta]
) -> None:
    type = "message_update" if kind is TextDelta else "reasoning_update"
    say, said = trio.open_memory_channel[str](1)

    async def play(receive: Receive) -> None:
        async for delta in said:
            await receive(kind(delta))
        await streams()(receive)

    async with memory_kit(tmp_path) as kit:
        kit.provider.answer(play)
        await kit.ask("prompt", text="go", wait=False)
        for delta, shown in (
            ("no key here", "no key here"),
            (" and none here", " and none here"),
            (" but sk-rep", " but "),
            ("air", "sk-repair"),
            (" now " + KEY[:-1], " now "),
            (KEY[-1], REDACTED),
            ("!", "!"),
        ):
            # It is shown before the model says anything more.
            say.send_nowait(delta)
            assert (await kit.events.until(type))["payload"]["delta"] == shown
        say.close()
        await kit.events.run()


async def test_the_beginning_of_a_key_is_told_at_the_end_of_the_message(tmp_path: Path) -> None:
    async with memory_kit(tmp_path) as kit:
        for begin, _ in splits(KEY):
            run = await kit.run(says("see ", begin))
            assert of_type(run, "message_end")[-1]["text"] == f"see {begin}"
            assert [update["delta"] for update in of_type(run, "message_update")] == ["see ", begin]


async def test_a_message_may_be_nothing_but_the_beginning_of_a_key(tmp_path: Path) -> None:
    async with memory_kit(tmp_path) as kit:
        run = await kit.run(says("sk"))
        assert [end["text"] for end in of_type(run, "message_end")] == ["go", "sk"]


async def test_what_waits_when_a_model_fails_is_told(tmp_path: Path) -> None:
    async with memory_kit(tmp_path) as kit:
        run = await kit.run(fails(ProviderError("gone"), "done s"))
        assert "".join(update["delta"] for update in of_type(run, "message_update")) == "done s"
        assert run[-1]["payload"]["status"] == "error"


@pytest.mark.parametrize("kind", [TextDelta, ReasoningDelta])
async def test_an_answer_that_is_cut_within_a_key_shows_nothing_of_it(
    tmp_path: Path, kind: type[TextDelta | ReasoningDelta]
) -> None:
    native = NativeSettings(answer_bytes_max=1024, run_answer_bytes_max=1024 * len(KEY))
    async with memory_kit(tmp_path, native=native) as kit:
        for begin, end in splits(KEY):
            before = "x" * (1024 - len(begin))
            run = await kit.run(streams(kind(before), kind(f"{begin}{end} and more")))
            type = "message_update" if kind is TextDelta else "reasoning_update"
            assert "".join(update["delta"] for update in of_type(run, type)) == before
            (error,) = of_type(run, "error")
            assert error["code"] == "answer_too_long"


async def test_an_aborted_message_ends_with_what_was_shown(tmp_path: Path) -> None:
    async def play(receive: Receive) -> None:
        await receive(TextDelta(f"it is {KEY[:-1]}"))
        await trio.sleep_forever()

    async with memory_kit(tmp_path) as kit:
        kit.provider.answer(play)
        await kit.ask("prompt", text="go", wait=False)
        await kit.events.until("message_update")
        await kit.ask("abort")
        run = await kit.events.run()
        end = of_type(run, "message_end")[-1]
        assert (end["text"], end["stop_reason"]) == ("it is ", "aborted")


async def test_a_key_of_which_text_and_reasoning_have_a_half_each_is_no_key(tmp_path: Path) -> None:
    begin, end = KEY[:8], KEY[8:]
    async with memory_kit(tmp_path) as kit:
        run = await kit.run(streams(TextDelta(begin), ReasoningDelta("hm"), TextDelta(end)))
        assert of_type(run, "message_end")[-1]["text"] == REDACTED
        run = await kit.run(streams(TextDelta(begin), ReasoningDelta(end)))
        assert of_type(run, "message_end")[-1]["text"] == begin


async def test_a_short_key_is_a_word_that_a_model_may_say(tmp_path: Path) -> None:
    async with memory_kit(tmp_path) as kit:
        run = await kit.run(says("run ", SHORT_KEY))
        assert of_type(run, "message_end")[-1]["text"] == f"run {SHORT_KEY}"


async def test_a_key_that_is_known_only_since_it_was_sent_is_removed(tmp_path: Path) -> None:
    secrets = Redactor()

    async def play(receive: Receive) -> None:
        secrets.add(KEY)
        await streams(*map(TextDelta, KEY), called({"note": KEY}))(receive)

    async with memory_kit(tmp_path, secrets=secrets) as kit:
        kit.tool.finish(gives())
        run = await kit.run(play, says("done"))
        assert of_type(run, "message_end")[1]["text"] == REDACTED
        assert of_type(run, "tool_execution_start")[0]["args"] == {"note": REDACTED}


async def test_a_summary_holds_no_key(tmp_path: Path) -> None:
    async with memory_kit(tmp_path) as kit:
        await kit.run(says("one"))
        await kit.run(says("two"))
        kit.provider.answer(says("they spoke of ", KEY[:5], KEY[5:]))
        assert (await kit.ask("compact_session"))["summary"] == f"they spoke of {REDACTED}"


# --- what goes back to the model -----------------------------------------------------------------


async def test_reasoning_goes_back_only_where_no_key_can_be_read_in_it(tmp_path: Path) -> None:
    def kept(text: str) -> ReasoningKept:
        return ReasoningKept(
            ReasoningBlock(dialect="scripted", data={"text": text, "signed": "c2ln"})
        )

    async with memory_kit(tmp_path) as kit:
        await kit.run(streams(kept("one"), kept("two"), TextDelta("fine")))
        await kit.run(streams(kept("three"), kept(f"it is {KEY}"), TextDelta("hm")))
        await kit.run(says("and?"))
        first, second = [
            [block.data["text"] for block in message.reasoning]
            for message in kit.provider.requests[-1].messages
            if isinstance(message, AssistantMessage)
        ]
        assert (first, second) == (["one", "two"], []), "a part of what was signed is worth nothing"


# --- calls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "args"),
    [
        (json.dumps({"note": f"a {KEY} b"}), {"note": f"a {REDACTED} b"}),
        (json.dumps({KEY: {"in": [1, [KEY], None]}}), {REDACTED: {"in": [1, [REDACTED], None]}}),
        ('{"note": "\\u0073k-' + KEY[3:] + '"}', {"note": REDACTED}),
        ('{"note": "' + KEY.replace("/", "\\/") + '"}', {"note": REDACTED}),
        (f"not json: {KEY}", {"_raw": f"not json: {REDACTED}"}),
    ],
)
async def test_a_key_in_arguments_is_removed_before_the_call_is_judged(
    tmp_path: Path, raw: str, args: dict[str, Any]
) -> None:
    async with memory_kit(tmp_path) as kit:
        kit.tool.finish(gives())
        run = await kit.run(streams(called(raw)), says("done"))
        for start in of_type(run, "tool_execution_start", "tool_call_requested"):
            assert start["args"] == args
        [call] = of_type(run, "entry_appended")[1]["entry"]["tool_calls"]
        assert call["args"] == args


async def test_a_key_of_digits_is_found_where_it_is_no_text(tmp_path: Path) -> None:
    digits = "123456789012345"
    async with memory_kit(tmp_path, secrets=Redactor([digits])) as kit:
        kit.tool.finish(gives())
        run = await kit.run(streams(called('{"pin": ' + digits + ', "more": 12345}')), says("done"))
        args = of_type(run, "tool_execution_start")[0]["args"]
        assert args == {"pin": REDACTED, "more": 12345}
        assert digits not in repr(kit.heard)


async def test_a_key_in_the_name_or_the_id_of_a_call_is_removed(tmp_path: Path) -> None:
    async with memory_kit(tmp_path) as kit:
        run = await kit.run(streams(called({}, name=f"use_{KEY}", id=f"id-{KEY}")), says("done"))
        [start] = of_type(run, "tool_execution_start")
        assert start["tool_name"] == f"use_{REDACTED}"
        assert start["runtime_tool_call_id"] == f"id-{REDACTED}"


async def test_what_is_asked_hashed_and_run_is_the_call_without_the_key(tmp_path: Path) -> None:
    (tmp_path / REDACTED).write_text("what is read")
    async with memory_kit(tmp_path, permissions=RulePermissions("ask")) as kit:
        kit.provider.answer(streams(called({"path": KEY}, name="read")), says("done"))
        await kit.ask("prompt", text="go", wait=False)
        request = (await kit.events.until("permission_requested"))["payload"]
        kit.heard.append(request)
        assert request["args"]["path"] == REDACTED
        named = {key: request[key] for key in ("tool_call_id", "attempt", "input_hash")}
        await kit.ask("confirm_tool", **named, decision="once")
        run = await kit.events.run()
        kit.heard += run
        [end] = of_type(run, "tool_execution_end")
        assert end["input_hash"] == request["input_hash"]
        assert "what is read" in end["result"]


# --- what tools tell while they run --------------------------------------------------------------


@pytest.mark.slow
async def test_a_tool_that_emits_a_key_in_pieces_tells_nobody(tmp_path: Path) -> None:
    async with memory_kit(tmp_path) as kit:
        for parts in [*splits(KEY), tuple(KEY)]:
            kit.tool.finish(emits("a ", *parts, " b", "sk-"))
            run = await kit.run(streams(called({})), says("done"))
            told = "".join(update["delta"] for update in of_type(run, "tool_execution_update"))
            assert told == f"a {REDACTED} bsk-"


async def test_what_waits_when_a_tool_fails_is_told(tmp_path: Path) -> None:
    async def play(context: ToolContext) -> ToolResult:
        await context.emit("almost s")
        raise OSError(5, "it broke")

    async with memory_kit(tmp_path) as kit:
        kit.tool.finish(play)
        run = await kit.run(streams(called({})), says("done"))
        told = "".join(update["delta"] for update in of_type(run, "tool_execution_update"))
        assert told == "almost s"


# --- MCP servers and extensions ------------------------------------------------------------------


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("tool", "before"),
    [
        ("progress", TOOL_UPDATES_BYTES_MAX - len(KEY)),  # the bound of what is streamed
        ("refuse", 500 - len(KEY) + 1),  # the bound of an error
        ("long_name", 200 - len(KEY) + 1),  # the bound of a name
    ],
)
async def test_a_bound_cuts_no_key_of_an_mcp_server(
    short_folder: Path, provider: Provider, stub: StubModel, tool: str, before: int
) -> None:
    pytest.importorskip("mcp", reason="the extra nousd[mcp] is not installed")

    # The model is not asked for it, because that would remove it from the arguments.
    def add(call: Any) -> ChangeArgs:
        return ChangeArgs({"words": "x" * before + KEY})

    secrets = Redactor([KEY])
    async with daemon_with_mcp(
        short_folder,
        provider,
        stub,
        mcp_servers=(SPEC,),
        secrets=secrets,
        hooks=hooks(on("tool_call", add)),
    ) as kit:
        await kit.until("ready")
        run = await kit.call(tool)
        told = repr([e for e in run if e["type"] != "tool_call_policy_evaluated"])
        assert REDACTED in told
        assert KEY[:-4] not in told


async def test_what_extensions_answer_holds_no_key(tmp_path: Path) -> None:
    async with memory_kit(
        tmp_path,
        hooks=hooks(
            on("input", lambda _: ChangeInput(f"go with {KEY}")),
            on("before_run", lambda _: AddInstructions(f"the key is {KEY}")),
            on("tool_call", lambda _: ChangeArgs({"key": KEY})),
            secrets=Redactor([KEY]),
        ),
    ) as kit:
        kit.tool.finish(gives())
        run = await kit.run(streams(called({})), says("done"))
        assert of_type(run, "message_start")[0]["text"] == f"go with {REDACTED}"
        assert f"the key is {REDACTED}" in kit.provider.requests[0].system
        assert KEY not in repr(kit.provider.requests)


@pytest.mark.parametrize("is_blocked", [False, True])
async def test_an_extension_puts_no_key_into_a_result(tmp_path: Path, is_blocked: bool) -> None:
    block = on("tool_call", lambda _: BlockCall(f"never {KEY}"))
    change = on("tool_result", lambda _: ChangeResult(f"it was {KEY}"))
    secrets = Redactor([KEY])
    async with memory_kit(
        tmp_path, hooks=hooks(block if is_blocked else change, secrets=secrets)
    ) as kit:
        kit.tool.finish(gives())
        run = await kit.run(streams(called({})), says("done"))
        [end] = of_type(run, "tool_execution_end")
        assert REDACTED in end["result"]
