"""protocol/behaviours.toml and the tests agree: each behaviour has a proof, each proof a behaviour.

A test claims a behaviour with ``@pytest.mark.behaviour("id")``, a conversation with a header line
``# behaviour: id``.
"""

from __future__ import annotations

import ast
import functools
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.harness.conversation import load

ROOT = Path(__file__).resolve().parent.parent
BEHAVIOURS: dict[str, dict[str, str]] = tomllib.loads(
    (ROOT / "protocol" / "behaviours.toml").read_text(encoding="utf-8")
)


def headings() -> set[str]:
    """Return the headings of the pages of protocol/, titles of reference pages included."""
    found = set()
    for path in (ROOT / "protocol").rglob("*.md"):
        lines = path.read_text(encoding="utf-8").split("\n")
        found |= {line.lstrip("#").strip() for line in lines if line.startswith("#")}
    return found


@functools.cache
def claims() -> dict[str, list[str]]:
    """Return behaviour id -> files that claim it."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for behaviour in claims_in(path.read_text(encoding="utf-8")):
            found.setdefault(behaviour, []).append(str(path.relative_to(ROOT)))
    for path in sorted((ROOT / "fixtures" / "conversations").glob("*.ndjson")):
        for behaviour in load(path).behaviours:
            found.setdefault(behaviour, []).append(str(path.relative_to(ROOT)))
    return found


def claims_in(source: str) -> Iterator[str]:
    if "behaviour" not in source:  # most files have none, and parsing takes long
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.behaviour":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def test_every_behaviour_is_claimed_by_a_test() -> None:
    unproved = sorted(set(BEHAVIOURS) - set(claims()))
    assert not unproved, (
        "behaviours without a test; mark one with @pytest.mark.behaviour(ID), or write a "
        f"conversation with '# behaviour: ID': {', '.join(unproved)}"
    )


def test_every_claimed_behaviour_exists() -> None:
    unknown = {name: where for name, where in claims().items() if name not in BEHAVIOURS}
    assert not unknown, (
        f"claims of behaviours that protocol/behaviours.toml does not have: {unknown}"
    )


def test_each_behaviour_is_a_sentence_about_a_section() -> None:
    known = headings()
    for behaviour, entry in BEHAVIOURS.items():
        assert entry.keys() == {"sentence", "section"}, behaviour
        assert entry["sentence"].endswith("."), behaviour
        assert entry["section"] in known, behaviour


def test_claims_are_found_in_tests() -> None:
    marked = "@pytest.mark.behaviour('one')\ndef test_x(): pass\n"
    parametrized = "pytest.param(1, marks=pytest.mark.behaviour('two'))"
    assert list(claims_in(marked + parametrized)) == ["one", "two"]
