"""Agent files: valid front matter, and the messages for invalid ones."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from nousd.config.agents import narrow_worker, parse_agent
from nousd.errors import ConfigError
from nousd.wire.limits import AGENT_PROMPT_CHARS_MAX, WORKER_RULES_MAX
from nousd.wire.objects.workers import WorkerPermissions, WorkerSpec

WHOLE = """---
name: reviewer
description: Reads a change.
tools: [read, grep]
permissions:
  allow: ["read"]
  ask: ["write"]
  deny: ["bash"]
  mode: ask
max_calls: 20
model: openai/gpt-x
---

You review changes.

Be brief.
"""


def test_an_agent_file_sets_every_field_of_a_worker() -> None:
    assert parse_agent(WHOLE, "stem") == WorkerSpec(
        name="reviewer",
        description="Reads a change.",
        prompt="You review changes.\n\nBe brief.",
        tools=("read", "grep"),
        permissions=WorkerPermissions(allow=("read",), ask=("write",), deny=("bash",), mode="ask"),
        max_calls=20,
        model="openai/gpt-x",
    )


@pytest.mark.parametrize(
    ("text", "worker"),
    [
        ("Do it.", WorkerSpec(name="stem", prompt="Do it.")),
        ("---\n---\nDo it.", WorkerSpec(name="stem", prompt="Do it.")),
        ("---\r\nname: a\r\n---\r\nDo it.\r\n", WorkerSpec(name="a", prompt="Do it.")),
        ("---\ntools: read, grep\n---\n", WorkerSpec(name="stem", tools=("read", "grep"))),
        ("---\ntools: []\n---\n", WorkerSpec(name="stem", tools=())),
        ("---\n# a comment\n---\nDo\n---\nit.", WorkerSpec(name="stem", prompt="Do\n---\nit.")),
        (
            '---\ndescription: "\\U0001f600"\n---\n',
            WorkerSpec(name="stem", description="\U0001f600"),
        ),
    ],
    ids=[
        "no front matter",
        "empty",
        "crlf",
        "tools in a line",
        "no tools",
        "a rule in the prompt",
        "a character by its number",
    ],
)
def test_every_part_of_an_agent_file_is_optional(text: str, worker: WorkerSpec) -> None:
    assert parse_agent(text, "stem") == worker


@pytest.mark.parametrize(
    ("front", "why"),
    [
        ("tols: [read]", "unknown key tols: nearest is tools"),
        ("prompt: hello", "unknown key prompt: nearest is "),
        ("permissions:\n  alow: []", "unknown key permissions.alow: nearest is allow"),
        ("name: a\nname: b", "the key name comes twice"),
        ("permissions:\n  deny: [a]\n  deny: [b]", "the key deny comes twice"),
        ("name: bad name", "at `name`"),
        ("max_calls: 0", "Expected `int` >= 1 - at `max_calls`"),
        ("max_calls: 10001", "at `max_calls`"),
        ("tools: 3", "Expected `array`, got `int` - at `tools`"),
        ("permissions:\n  mode: all", "at `permissions.mode`"),
        ("model: 2020-01-01", "Expected `str`, got `date` - at `model`"),
        ("description: 2020-13-45", "a value that is not plain"),
        ("a: &x [read]\ntools: *x", "the alias *x"),
        ("a: {b: {c: {d: {e: 1}}}}", "nested deeper than 4 levels"),
        ("a: " + "[" * 5000, "nested deeper than 4 levels"),
        ("name: [", "not YAML in line"),
        ("name: !!python/object/apply:os.getcwd []", "has a tag in line 2"),
        ("name: a\nx: !!bool foo", "has a tag in line 3"),
        ("x: !!timestamp foo", "has a tag in line 2"),
        ("!!set {name, tools}", "has a tag in line 2"),
        (f"x: 1{':1' * 1000}.0", "a value that is not plain"),
        ('description: "\\ud800"', "a value that is not plain"),
        ('name: "a\\n"', "at `name`"),
        (f"x: 1{':1' * 2048}", "a value of more than 4096 characters"),
        ("\n".join(f"k{count}: 1" for count in range(2049)), "more than 4096 values"),
        ("- a", "must be keys with values"),
        ("1: a", "must be keys with values"),
    ],
)
def test_invalid_front_matter_is_refused_with_one_line(front: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_agent(f"---\n{front}\n---\nprompt", "stem")
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_unterminated_front_matter_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not end"):
        parse_agent("---\npermissions:\n  deny: [bash]\nDo it.", "stem")


@pytest.mark.parametrize("past", [0, 1])
def test_prompts_and_rule_lists_have_limits(past: int) -> None:
    prompt = "x" * (AGENT_PROMPT_CHARS_MAX + past)
    rules = ", ".join(["read"] * (WORKER_RULES_MAX + past))
    for text in (prompt, f"---\npermissions:\n  deny: [{rules}]\n---\n"):
        if past:
            with pytest.raises(ConfigError):
                parse_agent(text, "stem")
        else:
            parse_agent(text, "stem")


def test_only_restrictions_of_an_untrusted_file_are_kept() -> None:
    worker, left_out = narrow_worker(parse_agent(WHOLE, "stem"))
    assert (worker.permissions.allow, worker.permissions.mode, worker.model) == ((), UNSET, UNSET)
    assert worker.permissions.ask == ("write",)
    assert worker.permissions.deny == ("bash",)
    assert (worker.tools, worker.max_calls) == (("read", "grep"), 20)
    assert worker.prompt.startswith("You review")
    assert [text.partition(" ")[0] for text in left_out] == [
        "permissions.allow",
        "permissions.mode",
        "model",
    ]
