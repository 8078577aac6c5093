"""protocol/extensions.md matches the code: its examples, tables and bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from nousd.extensions import calls
from nousd.extensions.api import HOOK_TIMEOUT_SECONDS, HOOKS_MAX
from nousd.extensions.hooks import (
    HOOKS,
    INSTRUCTIONS_CHARS_MAX,
    REASON_CHARS_MAX,
    Answer,
    ChangeInput,
    HandleInput,
    HookPayload,
    InputGiven,
    ToolCalled,
)
from nousd.extensions.loader import load_extensions
from nousd.wire.limits import (
    EXTENSION_RESULT_BYTES_MAX,
    INSTRUCTIONS_BYTES_MAX,
    NESTING_MAX,
    TEXT_CHARS_MAX,
    TOOL_ARGUMENTS_CHARS_MAX,
)

GUIDE = (Path(__file__).resolve().parents[2] / "protocol" / "extensions.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
FLAT = " ".join(GUIDE.split())


def rows(head: str) -> Iterator[list[str]]:
    """Yield the cells of the table whose first row begins with ``head``, without that row."""
    table = GUIDE[GUIDE.index(head) :].split("\n\n")[0]
    for line in table.split("\n")[2:]:
        yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def words(cell: str) -> list[str]:
    return re.findall(r"`(\w+)", cell)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_example_can_be_loaded(number: int, tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text(EXAMPLES[number])
    found = load_extensions([path], demo=False)
    assert found.tools or found.commands or any(found.hooks.has(name) for name in HOOKS)


async def test_the_examples_behave_as_described(tmp_path: Path) -> None:
    for number, example in enumerate(EXAMPLES):
        (tmp_path / f"example_{number}.py").write_text(example)
    paths = [tmp_path / f"example_{number}.py" for number in range(len(EXAMPLES))]
    found = load_extensions(paths, demo=False)
    called = ToolCalled(
        session_id="s",
        run_id="r",
        turn_id="1",
        tool_call_id="c",
        tool="read",
        args={"path": ".env"},
    )
    [blocked] = (await found.hooks.tool_call(called, lambda args: args)).verdicts
    assert blocked.blocks
    given = InputGiven(session_id="s", run_id="", kind="prompt", text="/note milk", attachments=0)
    assert (await found.hooks.input(given)).reply == "1 notes"
    given = msgspec.structs.replace(given, text="buy @notes")
    assert (await found.hooks.input(given)).text == "buy milk"
    assert await found.commands["about"]({"what": "x"}) == {"asked": "x", "answer": 42}


def test_the_table_of_hooks_matches_the_code() -> None:
    payload = {
        words(hook)[0]: (words(is_told), words(answers))
        for hook, _, is_told, answers in rows("| hook | when |")
    }
    assert payload == {
        name: ([kind.payload.__name__], [answer.__name__ for answer in kind.answers])
        for name, kind in HOOKS.items()
    }


def test_every_field_of_a_payload_is_listed() -> None:
    listed = {words(name)[0]: words(keys) for name, keys in rows("| value | fields |")}
    for kind in HOOKS.values():
        # Some words after the keys explain them.
        fields = list(kind.payload.__struct_fields__)
        assert [word for word in listed[kind.payload.__name__] if word in fields] == fields
    assert listed.keys() == {struct.__name__ for struct in HookPayload.__subclasses__()}


def test_every_answer_is_listed_with_its_fields() -> None:
    listed = {
        words(answer)[0]: [key.split("=")[0] for key in re.findall(r"[(,] ?(\w+=?)", answer)]
        for answer, _, _ in rows("| return value | bounds |")
    }
    assert listed == {
        struct.__name__: list(struct.__struct_fields__) for struct in Answer.__subclasses__()
    }


def test_the_documented_limits_match_the_code() -> None:
    bounds = {words(answer)[0]: bound for answer, bound, _ in rows("| return value | bounds |")}
    assert f"{TEXT_CHARS_MAX:,} characters" in bounds[ChangeInput.__name__]
    assert f"{TEXT_CHARS_MAX:,} characters" in bounds["ChangeResult"]
    assert f"{EXTENSION_RESULT_BYTES_MAX:,} characters" in bounds[HandleInput.__name__]
    assert f"{INSTRUCTIONS_CHARS_MAX:,} characters" in bounds["AddInstructions"]
    assert f"{INSTRUCTIONS_BYTES_MAX:,} bytes" in bounds["AddInstructions"]
    assert f"{TOOL_ARGUMENTS_CHARS_MAX:,} bytes" in bounds["ChangeArgs"]
    assert f"{NESTING_MAX} levels" in bounds["ChangeArgs"]
    for name in ("BlockCall", "Cancel"):
        assert f"1 to {REASON_CHARS_MAX} characters" in bounds[name]
    for sentence in (
        f"timeout_seconds={HOOK_TIMEOUT_SECONDS:g}, on_error=",
        f"An extension has at most {HOOKS_MAX}.",
        f"handler, *, timeout_seconds={calls.TIMEOUT_SECONDS:g}, classes=",
        f"`timeout_seconds` (at most {calls.TIMEOUT_SECONDS_MAX:g})",
        f"at most {calls.THREADS_MAX} of an extension's at a time",
    ):
        assert sentence in FLAT
