"""What a project's files may do to a session, before and after the user trusts them."""

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


def settle(root: Path, text: str | bytes = SETTINGS) -> str:
    """Write a project's settings and return their hash."""
    data = text.encode() if isinstance(text, str) else text
    path = root / FILE_NAME
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return digest(data)


@asynccontextmanager
async def in_project(root: Path, **options: Any) -> AsyncIterator[Bench]:
    """Run a daemon in a project, in the mode auto, with a client who could answer."""
    workspaces = options.pop("workspaces", None) or only_workspace(
        root, Project(root, reader(root))
    )
    options.setdefault("permissions", RulePermissions("auto", (), workspaces))
    async with asking_daemon(
        root,
        workspaces=workspaces,
        # What would be asked is denied at once, and says so.
        subscription={"types": "all"},
        **options,
    ) as bench:
        yield bench


async def outcome(bench: Bench, tool: str, **args: str) -> str:
    """Return ``runs``, ``asks`` or ``denied`` for a call of the model's."""
    run = await bench.run(calls((tool, json.dumps(args))))
    return outcome_of(run)


def outcome_of(run: Sequence[Event]) -> str:
    if of_type(run, "tool_call_approved"):
        return "runs"
    said = {each["decision"] for each in of_type(run, "tool_call_policy_evaluated")}
    return "asks" if "ask" in said else "denied"


async def listed(bench: Bench) -> Payload:
    (file,) = (await bench.client.request("list_trust"))["files"]
    return dict(file)


# --- what counts -----------------------------------------------------------------------------


@pytest.mark.behaviour("a_project_only_narrows")
async def test_of_an_untrusted_project_only_questions_and_denials_count(tmp_path: Path) -> None:
    settle(tmp_path)
    async with in_project(tmp_path) as bench:
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


async def test_what_does_not_count_is_told_in_the_first_run_of_a_session(tmp_path: Path) -> None:
    settle(tmp_path)
    async with in_project(tmp_path) as bench:
        await bench.client.request("new_session")
        # Whoever looks before does not take the remark away.
        await bench.client.request("list_permissions")
        (warning,) = of_type(await bench.run(calls(("read", '{"path": "a"}'))), "warning")[:1]
        assert warning["code"] == "project_config_ignored"
        for said in (
            "provider",
            "sandbox",
            "permission_mode yolo",
            "fetch(example.org)",
            "mcp.files",
        ):
            assert said in warning["message"]
        again = of_type(await bench.run(calls(("read", '{"path": "a"}'))), "warning")
        assert "project_config_ignored" not in [each["code"] for each in again]
        await bench.client.request("new_session")
        anew = of_type(await bench.run(calls(("read", '{"path": "a"}'))), "warning")
        assert "project_config_ignored" in [each["code"] for each in anew]


@pytest.mark.behaviour("trust_is_in_a_hash")
async def test_what_a_trusted_project_adds_counts_at_once(tmp_path: Path) -> None:
    found = settle(tmp_path)
    async with in_project(tmp_path) as bench:
        assert await outcome(bench, "fetch") == "asks"
        await bench.client.request("trust", hash=found)
        assert await outcome(bench, "fetch") == "runs"
        assert (await bench.client.request("list_permissions"))["mode"] == "yolo"
        assert await outcome(bench, "read", path="secret/key") == "denied"
        await bench.client.request("untrust")
        assert await outcome(bench, "fetch") == "asks"


@pytest.mark.behaviour("trust_is_in_a_hash")
async def test_trust_survives_a_restart(tmp_path: Path, short_folder: Path) -> None:
    found = settle(tmp_path)
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


async def test_a_file_that_changed_is_not_trusted_any_more(tmp_path: Path) -> None:
    found = settle(tmp_path)
    async with in_project(tmp_path) as bench:
        await bench.client.request("trust", hash=found)
        settle(tmp_path, SETTINGS + "# and more\n")
        assert await outcome(bench, "fetch") == "asks"
        assert (await listed(bench))["trusted"] is False
        settle(tmp_path)
        assert (await listed(bench))["trusted"] is True


async def test_a_hash_that_nobody_has_looked_at_trusts_nothing(tmp_path: Path) -> None:
    shown = settle(tmp_path)
    async with in_project(tmp_path) as bench:
        now = settle(tmp_path, SETTINGS + "# and more\n")
        error = await bench.client.refusal("trust", hash=shown)
        assert (error["message"], error["details"]) == ("hash_mismatch", {"hash": now})
        assert (await listed(bench))["trusted"] is False


async def test_a_session_keeps_the_settings_that_it_started_with(tmp_path: Path) -> None:
    settle(tmp_path, "[permissions]\ndeny = ['fetch']\n")
    async with in_project(tmp_path) as bench:
        assert await outcome(bench, "fetch") == "denied"
        settle(tmp_path, "")
        assert await outcome(bench, "fetch") == "denied"
        await bench.client.request("new_session")
        assert await outcome(bench, "fetch") == "asks"


async def test_trust_in_a_file_holds_for_sessions_that_started_with_it_alone(
    tmp_path: Path,
) -> None:
    settle(tmp_path, "[permissions]\nallow = ['read']\n")
    async with in_project(tmp_path) as bench:
        assert await outcome(bench, "fetch") == "asks"
        await bench.client.request("trust", hash=settle(tmp_path))
        # It is not what this session knows.
        assert await outcome(bench, "fetch") == "asks"
        await bench.client.request("new_session")
        assert await outcome(bench, "fetch") == "runs"


async def test_a_mode_of_ones_own_wins_over_that_of_the_project(tmp_path: Path) -> None:
    found = settle(tmp_path)
    async with in_project(tmp_path) as bench:
        await bench.client.request("trust", hash=found)
        await bench.client.request("new_session")
        await bench.client.request("set_permission_mode", mode="ask")
        assert await outcome(bench, "write", path="a", content="") == "asks"


async def test_a_mode_that_was_insisted_on_wins_over_that_of_the_project(tmp_path: Path) -> None:
    found = settle(tmp_path)
    workspaces = only_workspace(tmp_path, Project(tmp_path, reader(tmp_path)))
    permissions = RulePermissions("ask", (), workspaces, is_mode_insisted_on=True)
    async with in_project(tmp_path, workspaces=workspaces, permissions=permissions) as bench:
        await bench.client.request("trust", hash=found)
        await bench.client.request("new_session")
        assert await outcome(bench, "write", path="a", content="") == "asks"
        assert await outcome(bench, "fetch") == "runs"  # what else the project says counts


# --- trusting --------------------------------------------------------------------------------


async def test_other_files_of_a_project_are_trusted_by_their_hash(tmp_path: Path) -> None:
    agent = tmp_path / ".nousd" / "agents" / "a.md"
    agent.parent.mkdir(parents=True)
    agent.write_text("prompt")
    async with in_project(tmp_path) as bench:
        await bench.client.request("trust", path=".nousd/agents/a.md", hash=digest(b"prompt"))
        assert await listed(bench) == {
            "path": str(agent),
            "hash": digest(b"prompt"),
            "trusted": True,
        }
        agent.write_text("another prompt")
        assert (await listed(bench))["trusted"] is False
        agent.unlink()
        assert (await listed(bench))["hash"] == ""
        await bench.client.request("untrust", path=str(agent))
        assert (await bench.client.request("list_trust"))["files"] == []


@pytest.mark.parametrize(
    "path", ["a", "/etc/passwd", "../.nousd/config.toml", ".nousd/../a", ".nousd/\0", ".nousdx/a"]
)
async def test_what_is_no_file_of_the_project_cannot_be_trusted(tmp_path: Path, path: str) -> None:
    async with in_project(tmp_path) as bench:
        error = await bench.client.refusal("trust", path=path, hash="sha256:0")
        assert error["code"] == "invalid_payload"
        error = await bench.client.refusal("untrust", path=path)
        assert error["code"] == "invalid_payload"


async def test_a_file_that_leads_out_of_the_project_cannot_be_trusted(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    settle(outside)
    (root / ".nousd").symlink_to(outside / ".nousd")
    async with in_project(root) as bench:
        error = await bench.client.refusal("trust", hash=digest(SETTINGS.encode()))
        assert error["message"] == "project_file_not_found"
        assert await outcome(bench, "read", path="secret/key") == "runs"


# --- reading ---------------------------------------------------------------------------------


def test_a_project_without_settings_says_nothing(tmp_path: Path) -> None:
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
def test_what_is_wrong_in_a_project_is_a_problem_and_stops_nobody(
    tmp_path: Path, text: str | bytes, problem: str
) -> None:
    settle(tmp_path, text)
    settings = read_settings(tmp_path)
    assert any(problem in said for said in settings.problems), settings.problems
    assert (settings.adds, settings.restricts) == ((), ())


def test_what_is_right_beside_what_is_wrong_counts(tmp_path: Path) -> None:
    settle(tmp_path, "[permissions]\ndeny = ['x(', 'read(a)', 3]")
    assert read_settings(tmp_path).restricts == ("deny read(a)",)


def test_so_many_problems_of_a_project_are_told(tmp_path: Path) -> None:
    settle(tmp_path, f"[permissions]\ndeny = {json.dumps(['x('] * (PROBLEMS_MAX + 1))}")
    assert len(read_settings(tmp_path).problems) == PROBLEMS_MAX


@pytest.mark.parametrize(("levels", "counts"), [(7, True), (8, True), (9, False)])
def test_what_a_project_says_of_servers_has_at_most_so_many_levels(
    tmp_path: Path, levels: int, counts: bool
) -> None:
    settle(tmp_path, f"{'.'.join(['mcp', *'a' * levels])} = 1")
    assert bool(read_settings(tmp_path).mcp) == counts


def test_the_patterns_of_a_project_cost_at_most_so_much(tmp_path: Path) -> None:
    dear = f"read({'[a-z]' * 200})"
    count = PATTERNS_COST_MAX // meaning_of(dear).cost + 1
    for more, counts in ((-1, count - 1), (0, count), (1, count)):
        settle(tmp_path, f"[permissions]\ndeny = {json.dumps([dear] * (count + more))}")
        settings = read_settings(tmp_path)
        assert len(settings.deny) == counts
        assert bool(settings.problems) == (more > 0)


def test_a_project_has_at_most_so_many_rules_of_that_length(tmp_path: Path) -> None:
    def deny(*rules: str) -> tuple[str, ...]:
        settle(tmp_path, f"[permissions]\ndeny = {json.dumps(rules)}")
        return read_settings(tmp_path).deny

    assert len(deny(*["read"] * (RULES_MAX - 1))) == RULES_MAX - 1
    assert len(deny(*["read"] * RULES_MAX)) == RULES_MAX
    assert len(deny(*["read"] * (RULES_MAX + 1))) == RULES_MAX
    longest = f"read({'a' * (RULE_CHARS_MAX - 6)})"
    assert deny(longest[:-2] + ")", longest, longest[:-1] + "a)") == (longest[:-2] + ")", longest)


def test_the_settings_of_a_project_have_at_most_so_many_bytes(tmp_path: Path) -> None:
    rule = b"[permissions]\ndeny = ['read']\n#"
    for size, counts in ((-1, True), (0, True), (1, False)):
        settle(tmp_path, rule + b" " * (PROJECT_FILE_BYTES_MAX + size - len(rule)))
        settings = read_settings(tmp_path)
        assert (settings.deny == ("read",)) == counts
        assert bool(settings.problems) != counts


def test_settings_that_are_no_regular_file_inside_are_a_problem(tmp_path: Path) -> None:
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
