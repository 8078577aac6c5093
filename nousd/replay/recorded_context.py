"""The logged parts of model inputs other than the transcript: prompt, instructions and tools.

They are not read again, because files may have changed and extensions may be gone. Earlier versions did
not log them; then they are unknown, and keys that depend on them cannot be compared.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec import UNSET

from nousd.machine.context import text_offload
from nousd.machine.context.compaction import plan_cut
from nousd.machine.context.compiler import Frame, budget_of, compile_input
from nousd.machine.context.model_input import ModelChoice, ToolSpec
from nousd.machine.context.prompt_sections import SourceText, system_prompt, system_text
from nousd.machine.context.tokens import CHARS_PER_TOKEN
from nousd.machine.context.transcript import in_context
from nousd.replay.recorded import RecordedRun
from nousd.wire import events
from nousd.wire.codec.decoding import decode_json
from nousd.wire.events import models as model_events
from nousd.wire.objects.entries import Entry

_FIRST_KINDS: Final = ("system_prompt", "agent_prompt")
"""The kinds of the source with which a system prompt begins."""


class RecordedContext(msgspec.Struct, frozen=True):
    """The content of a run's model inputs except the messages; ``is_known`` if it was logged.

    Args:
        tools: all tools, each as described in the last call that offered it.
        offers: the tools of each call, by the id of the artifact that describes them.
    """

    is_known: bool = False
    system: str = ""
    system_path: str = ""
    instructions: tuple[SourceText, ...] = ()
    tools: dict[str, ToolSpec] = {}
    offers: dict[str, dict[str, ToolSpec]] = {}


class _Rest(msgspec.Struct):
    system: str
    tools: tuple[ToolSpec, ...]


def context_of(run: RecordedRun) -> RecordedContext:
    """Return the recorded context of a run."""
    inputs = list(find_answer_inputs(run.events))
    refs = [event.rest_ref for event in inputs if event.rest_ref is not UNSET]
    rests = {
        ref: decode_json(run.artifacts[ref].data, type=_Rest)
        for ref in refs
        if ref in run.artifacts
    }
    if not inputs or len(refs) < len(inputs) or not all(ref in rests for ref in refs):
        return RecordedContext()
    offers = {ref: {tool.name: tool for tool in rest.tools} for ref, rest in rests.items()}
    tools = {tool.name: tool for ref in refs for tool in rests[ref].tools}
    sources = () if inputs[0].sources is UNSET else inputs[0].sources
    context = _split_system_prompt(rests[refs[0]].system, sources, tools)
    return msgspec.structs.replace(context, offers=offers)


def comes_and_goes(tool: str) -> bool:
    """Return whether a tool belongs to an MCP server, so that a run may offer it in only some calls."""
    return tool.startswith("mcp__")


def find_answer_inputs(all_events: Iterable[events.Event]) -> Iterator[events.ModelInput]:
    """Yield the ``model_input`` event of each model call for an answer."""
    for event in all_events:
        if isinstance(event, events.ModelInput) and event.purpose != "summary":
            yield event


# --- unknown prompts -----------------------------------------------------------------------------


def build_placeholder_prompt(run: RecordedRun, *, compact_at: float, keep_recent: int) -> str:
    """Return a system prompt for a run whose prompt and tools are unknown.

    The log of a run that ended during or after its first compaction, before a model was asked for an
    answer, shows only how much they made the loop cut off. Return the shortest text with that effect;
    "" if there was no such compaction.
    """
    begins = (at for at, event in enumerate(run.events) if isinstance(event, events.ModelInput))
    place = next(begins, None)
    model_input = None if place is None else run.events[place]
    if not isinstance(model_input, events.ModelInput) or model_input.purpose != "summary":
        return ""
    window = model_input.context_window
    if window is UNSET or model_input.provider is UNSET:
        return ""
    appended = [e.entry for e in run.events[:place] if isinstance(e, events.EntryAppended)]
    artifact_data = run.artifact_data
    context: list[Entry] = [
        text_offload.whole_entry(entry, artifact_data)
        for entry in in_context([*run.path, *appended])
    ]
    choice = ModelChoice(model_input.provider, model_input.model)

    def is_cut(tokens: int) -> bool:
        frame = Frame(choice, _text_of(tokens), (), lambda _: True)
        budget = budget_of(window, frame, compact_at=compact_at, keep_recent=keep_recent)
        if not compile_input(context, frame, budget).crowded:
            return False
        cut = plan_cut(context, budget.recent)
        return cut is not None and len(cut.dropped) >= model_input.entries

    # The longer the prompt, the more is cut off.
    return _text_of(bisect_left(range(window), True, key=is_cut))


def _text_of(tokens: int) -> str:
    return "." * (tokens * CHARS_PER_TOKEN)


# --- logged prompts ------------------------------------------------------------------------------


def _split_system_prompt(
    text: str, sources: Iterable[model_events.Source], tools: dict[str, ToolSpec]
) -> RecordedContext:
    """Split a system prompt into its sources. The first instructions get the text of all, including the
    headings of the others, because the boundaries are unknown.
    """
    prompt = next((source for source in sources if source.kind in _FIRST_KINDS), None)
    size = 0 if prompt is None or prompt.bytes is UNSET else prompt.bytes
    system = text.encode()[:size].decode(errors="ignore")
    rest = text.removeprefix(system).removeprefix("\n\n")
    instructions = []
    for source in sources:
        if source.kind in _FIRST_KINDS:
            continue
        own_text, rest = ("", rest) if source.hash is UNSET else (rest, "")
        heading = system_text([SourceText(source, "x")]).removesuffix("x")
        instructions.append(SourceText(source, own_text.removeprefix(heading)))
    path = "" if prompt is None or prompt.path is UNSET else prompt.path
    context = RecordedContext(True, system, path, tuple(instructions), tools)
    joined = system_text(
        [system_prompt(context.system, context.system_path), *context.instructions]
    )
    return context if joined == text else RecordedContext(True, text, tools=tools)
