"""protocol/v1.md says what the code does: its examples, its tables, its links, its lists of words."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nousd.machine.context.model_input import AssistantMessage, ToolResultMessage, UserMessage
from nousd.wire import responses
from nousd.wire.codec.envelope import decode_payload, decode_request
from nousd.wire.commands import COMMANDS
from nousd.wire.commands import inputs as input_commands
from nousd.wire.commands.subscribe import Subscribe
from nousd.wire.events import EVENTS
from nousd.wire.events import models as model_events
from nousd.wire.objects import (
    entries,
    inputs,
    mcp,
    policy,
    questions,
    remarks,
    run_options,
    session_settings,
    trust,
    workers,
)
from nousd.wire.objects.workspaces import OverrideInForce
from nousd.wire.responses import RESPONSES
from nousd.wire.responses import models as model_responses
from nousd.wire.responses import runs as run_responses
from nousd.wire.responses import sessions as session_responses
from nousd.wire.responses import state as state_response
from nousd.wire.responses import tools as tool_responses
from nousd.wire.responses import transcripts as transcript_responses
from nousd.wire.responses.tools import AgentSummary
from tests.validation import check_command, check_event, check_response, check_subscription

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "protocol" / "v1.md").read_text(encoding="utf-8")

OBJECTS: dict[str, type[Any]] = {
    "Message entry": entries.MessageEntry,
    "MCP server": mcp.McpServer,
    "MCP server summary": mcp.McpServerSummary,
    "Compaction entry": entries.CompactionEntry,
    "Tool call": entries.ToolCall,
    "Omitted entry": model_events.Omitted,
    "Source": model_events.Source,
    "Tool call record": tool_responses.ToolCallRecord,
    "Tool call summary": tool_responses.ToolCallSummary,
    "Call decision": tool_responses.CallDecision,
    "Policy source": policy.PolicySource,
    "Policy snapshot": policy.PolicySnapshot,
    "Sandbox facts": policy.SandboxFacts,
    "Usage": entries.Usage,
    "Usage totals": entries.UsageTotals,
    "Attachment": entries.Attachment,
    "Attachment given": input_commands.AttachmentGiven,
    "Reasoning block": entries.ReasoningBlock,
    "Queued input": inputs.QueuedInput,
    "Pending counts": inputs.PendingCounts,
    "Remark": remarks.Remark,
    "Active run": run_responses.ActiveRun,
    "Open message": state_response.OpenMessage,
    "Tree node": transcript_responses.TreeNode,
    "Session summary": session_responses.SessionSummary,
    "Session record": session_responses.SessionRecord,
    "Session rules": session_settings.SessionRules,
    "Sampling": entries.Sampling,
    "Run record": run_responses.RunRecord,
    "Run options": run_options.RunOptions,
    "Tool": responses.ToolSummary,
    "Model": model_responses.ModelSummary,
    "Prices": model_responses.Prices,
    "Unlisted provider": model_responses.ProviderUnlisted,
    "Provider summary": model_responses.ProviderSummary,
    "Override": OverrideInForce,
    "Expired request": tool_responses.ExpiredRequest,
    "Rule in force": tool_responses.RuleInForce,
    "User question": questions.UserQuestion,
    "Question option": questions.QuestionOption,
    "Question answer": questions.QuestionAnswer,
    "Flat event": run_responses.FlatEvent,
    "Agent": AgentSummary,
    "Project file": trust.ProjectFile,
    "Worker": workers.WorkerSpec,
    "Worker permissions": workers.WorkerPermissions,
    "Task origin": workers.TaskOrigin,
    "Origin": workers.Origin,
}


def sections() -> dict[str, str]:
    """Returns "Chapter/section" -> text, and "Chapter" -> what stands before its first section."""
    found: dict[str, str] = {}
    chapter = name = ""
    for line in DOCUMENT.split("\n"):
        if line.startswith("## "):
            chapter = name = line[3:]
        elif line.startswith("### "):
            name = f"{chapter}/{line[4:]}"
        found[name] = found.get(name, "") + line + "\n"
    return found


SECTIONS = sections()


def rows(section: str) -> Iterator[list[str]]:
    """Yields the cells of a section's first table, without its head."""
    lines = SECTIONS[section].split("\n")
    table = [line for line in lines if line.startswith("| ")]
    for line in table[2:]:
        yield [cell.strip() for cell in line.strip("|").split(" | ")]


# --- tables of keys --------------------------------------------------------------------------


def response_section(name: str) -> str:
    return f"Responses/{name}" + (" (response)" if name in EVENTS else "")


STRUCTS: dict[str, type[Any]] = {
    **{f"Commands/{name}": struct for name, struct in COMMANDS.items()},
    **{response_section(name): struct for name, struct in RESPONSES.items()},
    **{f"Objects/{name}": struct for name, struct in OBJECTS.items()},
    **{f"Events/{name}": struct for name, struct in EVENTS.items()},
    "Subscriptions": Subscribe,
}


@pytest.mark.parametrize("section", STRUCTS)
def test_a_table_lists_the_keys_of_its_struct(section: str) -> None:
    struct = STRUCTS[section]
    fields = [(field.name, field.required) for field in msgspec.structs.fields(struct)]
    config = struct.__struct_config__
    expected = [(config.tag_field, True), *fields] if config.tag_field else fields
    told = [(cells[0].strip("`"), cells[2] == "yes") for cells in rows(section)]
    assert told == expected


# --- examples --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message", [UserMessage, AssistantMessage, ToolResultMessage], ids=lambda each: each.__name__
)
def test_what_a_model_is_given_lists_the_keys_of_each_message(message: type[Any]) -> None:
    role = message.__struct_config__.tag
    section = SECTIONS["Lifecycle/What a model is given"]
    [told] = re.findall(rf"^\| `{role}` \| (.*) \|$", section, re.MULTILINE)
    named = re.findall(r"`(\w+)`", re.sub(r"\(array.*?\)(?=,|$)|\(the.*?\)", "", told))
    assert named == [field.encode_name for field in msgspec.structs.fields(message)]


def examples_in(text: str) -> list[str]:
    blocks = re.findall(r"^```json\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


EXAMPLES = examples_in(DOCUMENT)


def kind_of(example: str) -> str:
    line = json.loads(example)
    if "ok" in line:
        return "response"
    if "ts" in line:
        return "event"
    return "subscription" if line["type"] == "subscribe" else "command"


CHECKS = {
    "response": check_response,
    "event": check_event,
    "subscription": check_subscription,
    "command": check_command,
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_to_the_schema(example: str) -> None:
    CHECKS[kind_of(example)](example.encode() + b"\n")


@pytest.mark.parametrize("example", [line for line in EXAMPLES if kind_of(line) == "command"])
def test_an_example_of_a_command_can_be_decoded(example: str) -> None:
    request = decode_request(example.encode())
    assert isinstance(decode_payload(request), COMMANDS[request.type])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_an_example_each_way(name: str) -> None:
    lines = examples_in(SECTIONS[f"Commands/{name}"])
    assert [kind_of(line) for line in lines] == ["command", "response"]
    asked, answered = (json.loads(line) for line in lines)
    assert asked["type"] == name
    assert asked["id"] == answered["id"]


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_has_an_example(name: str) -> None:
    lines = examples_in(SECTIONS[f"Events/{name}"])
    assert [json.loads(line)["type"] for line in lines] == [name]


# --- words, links, generated parts -----------------------------------------------------------


def rejections_in_code() -> set[str]:
    """Returns the machine words that the code rejects commands with."""
    found = set()
    for path in (ROOT / "nousd").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "CommandRejected":
                found |= words_in(node.args[0])
    return found


def words_in(message: ast.expr) -> set[str]:
    texts = [node.value for node in ast.walk(message) if isinstance(node, ast.Constant)]
    return {text.split(":")[0] for text in texts if isinstance(text, str)}


def test_every_word_of_command_rejected_is_listed_and_none_else() -> None:
    listed = {
        cells[0].strip("`").split(":")[0] for cells in rows("Errors/Words of command_rejected")
    }
    assert listed == rejections_in_code()


def test_every_link_leads_to_a_heading() -> None:
    headings = re.findall(r"^#+ (.*)$", DOCUMENT, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", DOCUMENT)) - anchors == set()


def test_every_linked_file_exists() -> None:
    targets = re.findall(r"\]\(([^#)][^)]*)\)", DOCUMENT)
    assert [target for target in targets if not (ROOT / "protocol" / target).exists()] == []


def test_everything_generated_is_fresh() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "scripts.generation", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("", "", 0)
