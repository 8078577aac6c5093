"""Workspace overrides: paths outside need approval instead of being refused, and open for one call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, get_args

import pytest

from nousd.daemon.policy.permissions import RulePermissions
from nousd.daemon.workspace.settings import workspaces_of_settings
from nousd.extensions.api import ExtensionApi, Registrations
from nousd.machine.policy.rules import RuleDecision, rules_of
from nousd.tools.interface import ToolContext
from nousd.wire.objects.entries import PermissionMode
from tests.daemon.asking_bench import calls
from tests.daemon.overrides_bench import (
    Look,
    overriding,
)
from tests.daemon.scripted import says
from tests.daemon.workspaces_bench import Folders
from tests.harness.daemon import of_type

pytestmark = pytest.mark.behaviour("an_override_asks_about_what_leads_out")

MODES: Final[tuple[PermissionMode, ...]] = get_args(PermissionMode)


def permissions_with_rules(
    folders: Folders, mode: PermissionMode, **rules: list[str]
) -> RulePermissions:
    kinds: dict[str, RuleDecision] = {"allow": "allow", "ask": "ask", "deny": "deny"}
    all_rules = [
        rule for kind, texts in rules.items() for rule in rules_of(kinds[kind], texts, "a test")
    ]
    return RulePermissions(mode, all_rules, workspaces_of_settings(folders.settings()))


# --- approval requests -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rule", ["none", "allow", "granted", "deny"])
@pytest.mark.parametrize("overridden", [True, False])
async def test_paths_outside_need_approval_under_an_override_unless_a_rule_denies_them(
    mode: PermissionMode, rule: str, overridden: bool, folders: Folders
) -> None:
    rules = {rule: ["look"]} if rule in {"allow", "deny"} else {}
    permissions = permissions_with_rules(folders, mode, **rules)
    async with overriding(folders, permissions=permissions) as bench:
        session = await bench.session()
        if rule == "granted":
            live = await bench.daemon.services.sessions.get(session)
            await bench.daemon.services.sessions.update(live, granted=("look",)).wait_committed()
        if overridden:
            await bench.override(session)
        target = folders.outside / "name.txt"
        call_id = await bench.start(session, target)
        if overridden and rule != "deny":
            request = (await bench.events.until("permission_requested"))["payload"]
            assert request["outside"] == [str(target)]
            assert request["reason"] == f"it leads out of the workspace, to {target}"
            assert "rule" not in request
            assert (await bench.answer(request)).text == "this is outside\n"
            return
        if rule == "none" and mode == "ask" and not overridden:
            request = (await bench.events.until("permission_requested"))["payload"]
            assert "outside" not in request
            await bench.answer(request)
        ended = await bench.end_of(call_id)
        assert ended.is_error
        assert "this is outside" not in ended.text
        if rule == "deny":
            assert (await bench.decision(call_id))["by"] == "policy"
        else:
            assert ended.text.startswith("tool_error: path_outside_workdir")


@pytest.mark.slow(keep=5)
@pytest.mark.parametrize(
    ("tool", "args", "expected"),
    [
        ("read", {"path": "{out}/name.txt"}, "this is outside"),
        ("read", {"path": "../outside/name.txt"}, "this is outside"),
        ("read", {"path": "link/name.txt"}, "this is outside"),
        ("ls", {"path": "{out}"}, "name.txt"),
        ("find", {"path": "{out}", "pattern": "*.txt"}, "{out}/name.txt"),
        ("grep", {"path": "{out}", "pattern": "this"}, "{out}/name.txt:1: this is outside"),
        ("write", {"path": "{out}/new/file.txt", "content": "x"}, "Wrote 1 bytes"),
        (
            "edit",
            {"path": "{out}/name.txt", "oldText": "is", "newText": "was", "replaceAll": True},
            "Replaced",
        ),
        (
            "patch",
            {"patch": "--- /dev/null\n+++ ../outside/n\n@@ -0,0 +1 @@\n+x\n", "strip": 0},
            "Patched 1 file",
        ),
    ],
)
async def test_every_file_tool_asks_for_a_path_outside_under_an_override(
    tool: str, args: dict[str, Any], expected: str, folders: Folders
) -> None:
    (folders.home / "link").symlink_to(folders.outside)
    filled = {
        key: value.format(out=folders.outside) if key == "path" else value
        for key, value in args.items()
    }
    async with overriding(folders) as bench:
        session = await bench.session()
        refused = await bench.call(session, tool, **filled)
        assert "path_outside_workdir" in refused.text
        await bench.override(session)
        await bench.client.request("call_tool", session_id=session, tool=tool, args=filled)
        request = (await bench.events.until("permission_requested"))["payload"]
        assert [Path(place).is_relative_to(folders.outside) for place in request["outside"]] == [
            True
        ]
        ended = await bench.answer(request)
        assert expected.format(out=folders.outside) in ended.text
        assert not ended.is_error


async def test_a_path_inside_the_workspace_needs_no_approval_under_an_override(
    folders: Folders,
) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        assert (await bench.call(session, "read", path="name.txt")).text == "this is home"


async def test_the_daemons_own_paths_stay_refused_under_an_override(folders: Folders) -> None:
    (folders.home / "link").symlink_to(folders.state)
    async with overriding(folders, folders.home.parent, mode="ask") as bench:
        session = await bench.session()
        await bench.override(session)
        for path in (
            folders.state / "name.txt",
            "link/name.txt",
            "../state/new",
            "/proc/self/environ",
        ):
            await bench.start(session, path, "read")
            request = (await bench.events.until("permission_requested"))["payload"]
            # The mode asks about every call; its approval does not open the path.
            assert "outside" not in request
            ended = await bench.answer(request)
            assert ended.text.startswith("tool_error: path_outside_workdir")
    async with overriding(folders, folders.home.parent) as bench:
        session = await bench.session()
        await bench.override(session)
        ended = await bench.call(session, "read", path=str(folders.state / "name.txt"))
        assert ended.text.startswith("tool_error: path_outside_workdir")


async def test_an_approved_search_outside_skips_the_daemons_own_paths(
    folders: Folders,
) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        request = await bench.asked(session, "..", tool="grep", pattern="this is")
        found = (await bench.answer(request)).text
        assert "outside/name.txt:1: this is outside" in found
        assert "this is state" not in found


async def test_a_deny_rule_also_applies_outside_the_workspace(folders: Folders) -> None:
    (folders.outside / ".env").write_text("KEY=1")
    permissions = permissions_with_rules(folders, "yolo", deny=["read(**/.env)"])
    async with overriding(folders, permissions=permissions) as bench:
        session = await bench.session()
        await bench.override(session)
        call_id = await bench.start(session, folders.outside / ".env", "read")
        await bench.end_of(call_id)
        assert (await bench.decision(call_id))["reason"].startswith("tool_blocked: the rule")
        request = await bench.asked(session, folders.outside, tool="grep", pattern="KEY")
        assert (await bench.answer(request)).text == "No matches found."


async def test_an_extensions_tool_asks_for_a_path_outside_under_an_override(
    folders: Folders,
) -> None:
    def peek(args: Look, context: ToolContext) -> str:
        with context.path_sandbox.locate(args.path) as place, place.open_file() as file:
            return file.read().decode()

    registered = Registrations()
    ExtensionApi("e", registered).tool(
        "peek", "Peeks.", Look, peek, classes=["read"], path_argument="path"
    )
    async with overriding(folders, tools=list(registered.tools.values())) as bench:
        session = await bench.session()
        await bench.override(session)
        request = await bench.asked(session, "../outside/name.txt", tool="peek")
        assert request["outside"] == [str(folders.outside / "name.txt")]
        assert (await bench.answer(request)).text == "this is outside"


async def test_bash_needs_no_other_approval_under_an_override(folders: Folders) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        live = await bench.daemon.services.sessions.get(session)
        assert bench.daemon.services.run_services.overrides.under(live.state) is not None
        # The paths of a command are unknown: it is judged as without an override.
        ended = await bench.call(session, "bash", command="pwd")
        assert ended.text.strip() == str(folders.home)
        assert not await bench.log("permission_requested")


async def test_a_call_outside_is_denied_at_once_if_no_client_can_be_asked(folders: Folders) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.events.subscribe(types="all")
        await bench.override(session)
        call_id = await bench.start(session, folders.outside / "name.txt")
        await bench.end_of(call_id)
        decision = await bench.decision(call_id)
        assert decision["by"] == "policy"
        assert decision["reason"].endswith("and no connected client can be asked")


# --- scope of an approval ----------------------------------------------------------------------


@pytest.mark.parametrize("decision", ["session", "always"])
@pytest.mark.parametrize("rule", [None, "look"])
async def test_a_path_outside_can_only_be_approved_for_one_call(
    decision: str, rule: str | None, folders: Folders
) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        request = await bench.asked(session, folders.outside / "name.txt")
        named = {key: request[key] for key in ("tool_call_id", "attempt", "input_hash")}
        more = {} if rule is None else {"rule": rule}
        error = await bench.client.refusal("confirm_tool", decision=decision, **named, **more)
        assert error["message"] == "once_only"
        assert error["details"] == {"outside": [str(folders.outside / "name.txt")]}
        assert (await bench.answer(request)).text == "this is outside\n"
        # The next such call needs another approval.
        again = await bench.asked(session, folders.outside / "name.txt")
        assert (await bench.answer(again, "deny")).is_error


@pytest.mark.parametrize("swap", ["the link", "the folder"])
async def test_a_path_swapped_after_the_approval_is_refused(swap: str, folders: Folders) -> None:
    elsewhere = folders.outside.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "name.txt").write_text("this is elsewhere\n")
    (folders.home / "link").symlink_to(folders.outside)
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        request = await bench.asked(session, "link/name.txt")
        if swap == "the link":
            (folders.home / "link").unlink()
            (folders.home / "link").symlink_to(elsewhere)
        else:
            folders.outside.rename(folders.outside.with_name("before"))
            folders.outside.symlink_to(elsewhere)
        ended = await bench.answer(request)
        assert ended.text == "tool_error: path_outside_workdir: link/name.txt"


async def test_an_approval_does_not_outlive_the_override(folders: Folders) -> None:
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        request = await bench.asked(session, folders.outside / "name.txt")
        await bench.answer(request)
        await bench.override(session, 0)
        call_id = await bench.start(session, folders.outside / "name.txt")
        assert "path_outside_workdir" in (await bench.end_of(call_id)).text


async def test_the_policy_snapshot_of_an_approved_call_names_the_override(folders: Folders) -> None:
    target = folders.outside / "name.txt"
    async with overriding(folders) as bench:
        session = await bench.session()
        await bench.override(session)
        bench.provider.answer(calls(("look", json.dumps({"path": str(target)}))), says("done"))
        await bench.client.request("prompt", text="go", wait=False, session_id=session)
        request = (await bench.events.until("permission_requested"))["payload"]
        await bench.client.request(
            "confirm_tool",
            decision="once",
            **{key: request[key] for key in ("tool_call_id", "attempt", "input_hash")},
        )
        run = await bench.events.run()
        [end] = of_type(run, "tool_execution_end")
        assert end["result"] == "this is outside\n"
        [completed] = of_type(run, "tool_call_completed")
        sources = completed["policy_snapshot"]["sources"]
        assert {"source": "override", "decision": "ask", "reason": request["reason"]} in sources
