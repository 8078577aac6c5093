"""The effect of a project's files on a session, before and after the user trusts them."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nousd.config.project_file import FILE_NAME, PROBLEMS_MAX
from nousd.daemon.policy.permissions import RulePermissions
from nousd.daemon.workspace.project import PATTERNS_COST_MAX, Project, read_settings, reader
from nousd.machine.policy.rules import meaning_of
from nousd.wire.codec.canonical_json import digest
from nousd.wire.limits import PROJECT_FILE_BYTES_MAX, RULE_CHARS_MAX, RULES_MAX
from tests.daemon.asking_bench import Bench, asking_daemon, calls
from tests.daemon.scripted import ScriptedProvider
from tests.harness.daemon import Event, Payload, of_type, only_workspace, socket_daemon

SETTINGS = """
permission_mode = "yolo"
provider = "elsewhere"
[permissions]
deny = ["read(secret/**)"]
ask = ["write(precious)"]
allow = ["fetch(example.org)"]
[sandbox]
network = true
[mcp.files]
command = ["server"]
"""


def write_settings(root: Path, text: str | bytes = SETTINGS) -> str:
    """Write a project's settings and return their hash."""
    data = text.encode() if isinstance(text, str) else text
    path = root / FILE_NAME
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return digest(data)


@asynccontextmanager
async def project_daemon(root: Path, **options: Any) -> AsyncIterator[Bench]:
    """Run a daemon in a project, in mode auto, with no client that can decide approvals."""
    workspaces = options.pop("workspaces", None) or only_workspace(
        root, Project(root, reader(root))
    )
    options.setdefault("permissions", RulePermissions("auto", (), workspaces))
    async with asking_daemon(
        root,
        workspaces=workspaces,
        # A call that needs approval is denied at once, and its reason says so.
        subscription={"types": "all"},
        **options,
    ) as bench:
        yield bench


async def outcome(bench: Bench, tool: str, **args: str) -> str:
    """Return ``runs``, ``asks`` or ``denied`` for a tool call of the model."""
    run = await bench.run(calls((tool, json.dumps(args))))
    return outcome_of(run)


def outcome_of(run: Sequence[Event]) -> str:
    if of_type(run, "tool_call_approved"):
        return "runs"
    decisions = {each["decision"] for each in of_type(run, "tool_call_policy_evaluated")}
    return "asks" if "ask" in decisions else "denied"


async def trust_entry(bench: Bench) -> Payload:
    (file,) = (await bench.client.request("list_trust"))["files"]
    return dict(file)


# --- effect ----------------------------------------------------------------------------------


@pytest.mark.behaviour("a_project_only_narrows")
async def test_an_untrusted_project_contributes_only_ask_and_deny_rules(tmp_path: Path) -> None:
    write_settings(tmp_path)
    async with project_daemon(tmp_path) as bench:
        assert await outcome(bench, "read", path="secret/key") == "denied"
        assert await outcome(bench, "write", path="precious", content="") == "asks"
        assert await outcome(bench, "fetch") == "asks"
        permissions = await bench.client.request("list_permissions")
        assert permissions["mode"] == "auto"
        assert permissions["rules"] == [
            {"decision": "deny", "rule": "read(secret/**)", "origin": "the project"},
            {"decision": "ask", "rule": "write(precious)", "origin": "the project"},
        ]
    assert not (tmp_path / "precious").exists()


async def test_ignored_settings_are_reported_in_the_first_run_of_each_session(
    tmp_path: Path,
) -> None:
    write_settings(tmp_path)
    async with project_daemon(tmp_path) as bench:
        await bench.client.request("new_session")
        # Listing the permissions first does not suppress the warning.
        await bench.client.request("list_permissions")
        (warning,) = of_type(await bench.run(calls(("read", '{"path": "a"}'))), "warning")[:1]
        assert warning["code"] == "project_config_ignored"
        for ignored in (
            "provider",
            "sandbox",
            "permission_mode yolo",
            "fetch(example.org)",
            "mcp.files",
        ):
            assert ignored in warning["message"]
        again = of_type(await bench.run(calls(("read", '{"path": "a"}'))), "warning")
        assert "project_config_ignored" not in [each["code"] for each in again]
        await bench.client.request("new_session")
        anew = of_type(await bench.run(calls(("read", '{"path": "a"}'))), "warning")
        assert "project_config_ignored" in [each["code"] for each in anew]


@pytest.mark.behaviour("trust_is_in_a_hash")
async def test_trusting_a_project_applies_its_settings_at_once(tmp_path: Path) -> None:
    found = write_settings(tmp_path)
    async with project_daemon(tmp_path) as bench:
        assert await outcome(bench, "fetch") == "asks"
        await bench.client.request("trust", hash=found)
        assert await outcome(bench, "fetch") == "runs"
        assert (await bench.client.request("list_permissions"))["mode"] == "yolo"
        assert await outcome(bench, "read", path="secret/key") == "denied"
        await bench.client.request("untrust")
        assert await outcome(bench, "fetch") == "asks"


@pytest.mark.behaviour("trust_is_in_a_hash")
async def test_trust_survives_a_restart(tmp_path: Path, short_folder: Path) -> None:
    found = write_settings(tmp_path)
    trusted = []
    for _ in range(2):
        project = Project(tmp_path, reader(tmp_path))
        provider = ScriptedProvider()
        async with socket_daemon(short_folder, provider=provider, project=project) as daemon:
            client = await daemon.connect()
            (file,) = (await client.request("list_trust"))["files"]
            trusted.append(file["trusted"])
            await client.request("trust", hash=found)
    assert trusted == [False, True]


async def test_a_changed_file_is_no_longer_trusted(tmp_path: Path) -> None:
    found = write_settings(tmp_path)
    async with project_daemon(tmp_path) as bench:
        await bench.client.request("trust", hash=found)
        write_settings(tmp_path, SETTINGS + "# and more\n")
        assert await outcome(bench, "fetch") == "asks"
        assert (await trust_entry(bench))["trusted"] is False
        write_settings(tmp_path)
        assert (await trust_entry(bench))["trusted"] is True


async def test_the_hash_of_an_earlier_version_trusts_nothing(tmp_path: Path) -> None:
    shown = write_settings(tmp_path)
    async with project_daemon(tmp_path) as bench:
        now = write_settings(tmp_path, SETTINGS + "# and more\n")
        error = await bench.client.refusal("trust", hash=shown)
        assert (error["message"], error["details"]) == ("hash_mismatch", {"hash": now})
        assert (await trust_entry(bench))["trusted"] is False


async def test_a_session_keeps_the_settings_that_it_started_with(tmp_path: Path) -> None:
    write_settings(tmp_path, "[permissions]\ndeny = ['fetch']\n")
    async with project_daemon(tmp_path) as bench:
        assert await outcome(bench, "fetch") == "denied"
        write_settings(tmp_path, "")
        assert await outcome(bench, "fetch") == "denied"
        await bench.client.request("new_session")
        assert await outcome(bench, "fetch") == "asks"


async def test_trust_in_a_file_applies_only_to_sessions_that_started_with_it(
    tmp_path: Path,
) -> None:
    write_settings(tmp_path, "[permissions]\nallow = ['read']\n")
    async with project_daemon(tmp_path) as bench:
        assert await outcome(bench, "fetch") == "asks"
        await bench.client.request("trust", hash=write_settings(tmp_path))
        # This session started with another version.
        assert await outcome(bench, "fetch") == "asks"
        await bench.client.request("new_session")
        assert await outcome(bench, "fetch") == "runs"


async def test_a_mode_set_for_the_session_overrides_the_projects_mode(tmp_path: Path) -> None:
    found = write_settings(tmp_path)
    async with project_daemon(tmp_path) as bench:
        await bench.client.request("trust", hash=found)
        await bench.client.request("new_session")
        await bench.client.request("set_permission_mode", mode="ask")
        assert await outcome(bench, "write", path="a", content="") == "asks"


async def test_a_mode_the_user_insists_on_overrides_the_projects_mode(tmp_path: Path) -> None:
    found = write_settings(tmp_path)
    workspaces = only_workspace(tmp_path, Project(tmp_path, reader(tmp_path)))
    permissions = RulePermissions("ask", (), workspaces, is_mode_insisted_on=True)
    async with project_daemon(tmp_path, workspaces=workspaces, permissions=permissions) as bench:
        await bench.client.request("trust", hash=found)
        await bench.client.request("new_session")
        assert await outcome(bench, "write", path="a", content="") == "asks"
        assert await outcome(bench, "fetch") == "runs"  # the project's other settings apply


# --- trusting --------------------------------------------------------------------------------


async def test_other_files_of_a_project_are_trusted_by_their_hash(tmp_path: Path) -> None:
    agent = tmp_path / ".nousd" / "agents" / "a.md"
    agent.parent.mkdir(parents=True)
    agent.write_text("prompt")
    async with project_daemon(tmp_path) as bench:
        await bench.client.request("trust", path=".nousd/agents/a.md", hash=digest(b"prompt"))
        assert await trust_entry(bench) == {
            "path": str(agent),
            "hash": digest(b"prompt"),
            "trusted": True,
        }
        agent.write_text("another prompt")
        assert (await trust_entry(bench))["trusted"] is False
        agent.unlink()
        assert (await trust_entry(bench))["hash"] == ""
        await bench.client.request("untrust", path=str(agent))
        assert (await bench.client.request("list_trust"))["files"] == []


@pytest.mark.parametrize(
    "path", ["a", "/etc/passwd", "../.nousd/config.toml", ".nousd/../a", ".nousd/\0", ".nousdx/a"]
)
async def test_a_path_that_is_not_a_project_file_cannot_be_trusted(
    tmp_path: Path, path: str
) -> None:
    async with project_daemon(tmp_path) as bench:
        error = await bench.client.refusal("trust", path=path, hash="sha256:0")
        assert error["code"] == "invalid_payload"
        error = await bench.client.refusal("untrust", path=path)
        assert error["code"] == "invalid_payload"


async def test_settings_linked_from_outside_the_project_are_ignored_and_cannot_be_trusted(
    tmp_path: Path,
) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    write_settings(outside)
    (root / ".nousd").symlink_to(outside / ".nousd")
    async with project_daemon(root) as bench:
        error = await bench.client.refusal("trust", hash=digest(SETTINGS.encode()))
        assert error["message"] == "project_file_not_found"
        assert await outcome(bench, "read", path="secret/key") == "runs"


# --- reading ---------------------------------------------------------------------------------


def test_a_project_without_a_settings_file_has_empty_settings(tmp_path: Path) -> None:
    settings = read_settings(tmp_path)
    assert (settings.path, settings.adds, settings.restricts, settings.problems) == ("", (), (), ())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("not toml", "it is not TOML"),
        (b"\xff", "it is not UTF-8"),
        ("x = [" + "[" * 100_000, "it is not TOML"),
        ("x = 1" + "0" * 5000, "it is not TOML"),
        ("[mcp.x]\n" + "a." * 100_000 + "b = 1", "a line has more than 128 dots"),
        ("a." * 129 + "b = 1", "a line has more than 128 dots"),
        ("a." * 128 + "b = 1", "a: a project cannot set this"),
        ("[mcp.x]\n" + "a." * 20 + "b = 1", "mcp: tables are nested deeper than 8 levels"),
        ("permissions = 1", "permissions must be a table"),
        ("[permissions]\nallow = 'read'", "permissions.allow must be a list of rules"),
        ("[permissions]\nallow = [1]", "permissions.allow: a rule is a text"),
        ("[permissions]\nallowed = []", "permissions.allowed: there is no such key"),
        ("permission_mode = 'all'", "permission_mode must be ask or auto or yolo"),
        ("permission_mode = ['ask']", "permission_mode must be ask or auto or yolo"),
        ("mcp = 1", "mcp must be tables"),
        ("extensions = ['x']", "extensions: a project cannot set this"),
        ("[permissions]\ndeny = ['x(']", "deny rule 'x(': a rule is TOOL or TOOL(PATTERN)"),
        ("[permissions]\nallow = ['bash(sudo *)']", "sudo runs other programs"),
    ],
)
def test_invalid_settings_are_reported_as_problems_and_have_no_effect(
    tmp_path: Path, text: str | bytes, problem: str
) -> None:
    write_settings(tmp_path, text)
    settings = read_settings(tmp_path)
    assert any(problem in each for each in settings.problems), settings.problems
    assert (settings.adds, settings.restricts) == ((), ())


def test_a_valid_rule_beside_invalid_ones_applies(tmp_path: Path) -> None:
    write_settings(tmp_path, "[permissions]\ndeny = ['x(', 'read(a)', 3]")
    assert read_settings(tmp_path).restricts == ("deny read(a)",)


def test_the_number_of_reported_problems_is_bounded(tmp_path: Path) -> None:
    write_settings(tmp_path, f"[permissions]\ndeny = {json.dumps(['x('] * (PROBLEMS_MAX + 1))}")
    assert len(read_settings(tmp_path).problems) == PROBLEMS_MAX


@pytest.mark.parametrize(("levels", "counts"), [(7, True), (8, True), (9, False)])
def test_mcp_settings_are_nested_at_most_8_levels_deep(
    tmp_path: Path, levels: int, counts: bool
) -> None:
    write_settings(tmp_path, f"{'.'.join(['mcp', *'a' * levels])} = 1")
    assert bool(read_settings(tmp_path).mcp) == counts


def test_the_total_cost_of_a_projects_patterns_is_bounded(tmp_path: Path) -> None:
    dear = f"read({'[a-z]' * 200})"
    count = PATTERNS_COST_MAX // meaning_of(dear).cost + 1
    for more, counts in ((-1, count - 1), (0, count), (1, count)):
        write_settings(tmp_path, f"[permissions]\ndeny = {json.dumps([dear] * (count + more))}")
        settings = read_settings(tmp_path)
        assert len(settings.deny) == counts
        assert bool(settings.problems) == (more > 0)


def test_the_number_and_length_of_a_projects_rules_are_bounded(tmp_path: Path) -> None:
    def deny(*rules: str) -> tuple[str, ...]:
        write_settings(tmp_path, f"[permissions]\ndeny = {json.dumps(rules)}")
        return read_settings(tmp_path).deny

    assert len(deny(*["read"] * (RULES_MAX - 1))) == RULES_MAX - 1
    assert len(deny(*["read"] * RULES_MAX)) == RULES_MAX
    assert len(deny(*["read"] * (RULES_MAX + 1))) == RULES_MAX
    longest = f"read({'a' * (RULE_CHARS_MAX - 6)})"
    assert deny(longest[:-2] + ")", longest, longest[:-1] + "a)") == (longest[:-2] + ")", longest)


def test_the_size_of_a_projects_settings_file_is_bounded(tmp_path: Path) -> None:
    rule = b"[permissions]\ndeny = ['read']\n#"
    for size, counts in ((-1, True), (0, True), (1, False)):
        write_settings(tmp_path, rule + b" " * (PROJECT_FILE_BYTES_MAX + size - len(rule)))
        settings = read_settings(tmp_path)
        assert (settings.deny == ("read",)) == counts
        assert bool(settings.problems) != counts


def test_settings_that_are_not_a_regular_file_in_the_project_are_a_problem(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / ".nousd").mkdir(parents=True)
    path = root / FILE_NAME
    os.mkfifo(path)
    assert read_settings(root).problems == ("it cannot be read: not a regular file",)
    path.unlink()
    path.mkdir()
    assert read_settings(root).problems == ("it cannot be read: Is a directory",)
    path.rmdir()
    (tmp_path / "elsewhere").write_text("[permissions]\ndeny = ['read']\n")
    path.symlink_to(tmp_path / "elsewhere")
    settings = read_settings(root)
    assert settings.problems == ("it cannot be read: it leads out of the project",)
    assert (settings.deny, settings.hash) == ((), "")
