"""Workers: the mode and tools that remain of their parent's."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET, UnsetType

from nousd.errors import RuleInvalid
from nousd.machine.policy.workers import check_rules, has_tool, narrowest, of_parent
from nousd.wire.objects.entries import PermissionMode
from nousd.wire.objects.workers import WorkerPermissions, WorkerSpec

Tools = tuple[str, ...] | UnsetType


@pytest.mark.parametrize(
    ("modes", "left"),
    [
        (("yolo",), "yolo"),
        (("yolo", "auto"), "auto"),
        (("auto", "ask", "yolo"), "ask"),
        (("ask", "yolo"), "ask"),
    ],
)
def test_the_narrowest_mode_is_the_one_that_asks_most(
    modes: tuple[PermissionMode, ...], left: PermissionMode
) -> None:
    assert narrowest(modes) == left


@pytest.mark.parametrize(
    ("parent", "own", "left"),
    [
        (UNSET, UNSET, UNSET),
        (UNSET, ("read",), ("read",)),
        (("read", "ls"), UNSET, ("read", "ls")),
        (("read", "ls"), ("ls", "bash"), ("ls",)),
        (("read",), ("bash",), ()),
        ((), UNSET, ()),
    ],
)
def test_a_worker_has_no_tool_that_its_parent_does_not_have(
    parent: Tools, own: Tools, left: Tools
) -> None:
    worker = of_parent(WorkerSpec(tools=own), WorkerSpec(tools=parent))
    assert worker.tools == left
    for name in ("read", "ls", "bash"):
        assert has_tool(worker, name) == (left is UNSET or name in left)


def test_a_session_that_is_not_a_worker_has_every_tool() -> None:
    assert has_tool(None, "bash")
    assert of_parent(WorkerSpec(tools=("bash",)), None).tools == ("bash",)


@pytest.mark.parametrize("kind", ["allow", "ask", "deny"])
def test_a_malformed_rule_is_refused(kind: str) -> None:
    def worker(rule: str) -> WorkerSpec:
        return WorkerSpec(permissions=msgspec.convert({kind: [rule]}, WorkerPermissions))

    check_rules(worker("bash(git status)"))
    with pytest.raises(RuleInvalid, match=f"{kind} rule 'bash\\(rm'"):
        check_rules(worker("bash(rm"))
