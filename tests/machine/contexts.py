"""Contexts, tools and budgets of every kind, including ones that no run produces."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from msgspec import UNSET

from nousd.machine.context.compiler import Budget, Frame, budget_of
from nousd.machine.context.model_input import ModelChoice, ToolSpec
from nousd.machine.context.transcript import in_context
from nousd.wire.objects.entries import Attachment, Entry, ReasoningBlock, ToolCall
from tests.machine.builders import compacted, message

CHOICE = ModelChoice("here", "model-1")

TEXTS = st.one_of(
    st.sampled_from(["", " ", "some words", "\ud800 alone", "\u20ac \U0001f600"]),
    st.integers(1, 40_000).map(lambda size: "x" * size),
)

FILES = st.lists(
    st.builds(
        Attachment,
        artifact_id=st.just("sha256:" + "0" * 64),
        media_type=st.sampled_from(["image/png", "text/plain", "application/pdf"]),
        size_bytes=st.integers(0, 100_000),
        name=st.sampled_from([UNSET, "notes"]),
    ),
    min_size=1,
    max_size=2,
).map(tuple)

ARGUMENTS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["path", "text", "é"]),
    st.one_of(st.integers(), st.text(max_size=5), st.just("y" * 3000), st.just([1.5, None])),
    max_size=2,
)


def contexts() -> st.SearchStrategy[list[Entry]]:
    return paths(20).map(in_context)


@st.composite
def paths(draw: st.DrawFn, entries_max: int) -> list[Entry]:
    path: list[Entry] = []
    open_calls: list[str] = []
    for number in range(draw(st.integers(0, entries_max))):
        kind = draw(
            st.sampled_from(["user", "assistant", "assistant", *["result"] * 4, "compaction"])
        )
        match kind:
            case "user":
                files = draw(st.one_of(st.just(UNSET), st.just(UNSET), FILES))
                path.append(message(f"u{number}", "user", draw(TEXTS), attachments=files))
            case "assistant":
                path.append(_answer(draw, f"a{number}"))
                calls = path[-1].tool_calls  # type: ignore[union-attr]
                open_calls += [] if calls is UNSET else [call.tool_call_id for call in calls]
            case "result":
                path.append(_result(draw, f"r{number}", open_calls))
            case _:
                ids = [entry.id for entry in in_context(path) if entry.id[0] in "ua"]
                path.append(compacted(f"c{number}", draw(st.sampled_from([*ids, "gone"]))))
    return path


def _answer(draw: st.DrawFn, entry_id: str) -> Entry:
    calls = tuple(
        ToolCall(
            tool_call_id=f"{entry_id}.{index}",
            runtime_tool_call_id="own",
            name=draw(st.sampled_from(["read", "not offered", "no\u20ac"])),
            args=draw(ARGUMENTS),
        )
        for index in range(draw(st.integers(0, 3)))
    )
    return message(
        entry_id,
        "assistant",
        draw(TEXTS),
        tool_calls=calls or UNSET,
        provider=draw(st.sampled_from(["here", "there"])),
        model="model-1",
        reasoning_blocks=draw(st.sampled_from([UNSET, _BLOCKS])),
    )


_BLOCKS = (ReasoningBlock(dialect="unheard of", data={"signature": "z" * 500}),)


def _result(draw: st.DrawFn, entry_id: str, open_calls: list[str]) -> Entry:
    wanted = draw(st.sampled_from([*open_calls[:1], *open_calls[-1:], "of-no-call"]))
    if wanted in open_calls:
        open_calls.remove(wanted)
    return message(
        entry_id,
        "tool",
        draw(TEXTS),
        tool_call_id=wanted,
        tool_name="read",
        is_error=draw(st.booleans()),
        artifact_id=draw(st.sampled_from([UNSET, "sha256:whole"])),
    )


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    tools = tuple(
        ToolSpec(name, "what it does", {"type": "object", "properties": {}})
        for name in draw(st.sampled_from([[], ["read"], ["read", "no\u20ac"]]))
    )
    takes_images = draw(st.booleans())
    return Frame(
        CHOICE,
        draw(st.sampled_from(["", "Be kind.", "p" * 4000])),
        tools,
        lambda media_type: takes_images or not media_type.startswith("image/"),
    )


@st.composite
def budgets(draw: st.DrawFn, frame: Frame) -> Budget:
    return budget_of(
        draw(st.sampled_from([50, 500, 2_000, 8_000, 32_000, 200_000])),
        frame,
        compact_at=draw(st.sampled_from([0.3, 0.8, 1.0])),
        keep_recent=draw(st.sampled_from([0, 1_000, 20_000])),
    )
