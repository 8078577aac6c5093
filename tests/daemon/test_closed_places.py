"""Paths that rules deny, or require approval for, are out of reach by every other route too."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nousd.daemon.policy.permissions import RulePermissions
from nousd.machine.policy.rules import rules_of
from nousd.wire.objects.entries import PermissionMode
from tests.daemon.asking_bench import Bench, asking_daemon, calls, naming
from tests.harness.daemon import of_type

KEY = "topsecret"

pytestmark = pytest.mark.behaviour("denied_places_are_closed_on_every_way")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("secret/deep", "public", ".git/hooks", "folder"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("secret/key", "secret/deep/key", "public/key", "folder/key"):
        (tmp_path / file).write_text(KEY)
    (tmp_path / ".git" / "key").write_text("as it was")
    (tmp_path / "link").symlink_to("secret")
    (tmp_path / "public" / "link").symlink_to("../secret/key")
    return tmp_path


@asynccontextmanager
async def daemon_in(
    root: Path,
    mode: PermissionMode,
    *,
    deny: tuple[str, ...] = (),
    ask: tuple[str, ...] = (),
) -> AsyncIterator[Bench]:
    rules = (*rules_of("deny", deny, "a test"), *rules_of("ask", ask, "a test"))
    async with asking_daemon(root, permissions=RulePermissions(mode, rules)) as bench:
        yield bench


async def result_of(bench: Bench, tool: str, **args: object) -> str:
    """Return the result of a call that needs no approval."""
    end = of_type(await bench.run(calls((tool, json.dumps(args)))), "tool_execution_end")[-1]
    return str(end["result"])


SEARCHES = [
    ("grep", {"pattern": "."}),
    ("grep", {"pattern": ".", "path": "."}),
    ("find", {"pattern": "*"}),
    ("find", {"pattern": "**/key"}),
    ("ls", {"path": "."}),
]


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize(
    "rule", ["read(secret)", "read(secret/**)", "*(secret/**)", "read(SECRET/**)"]
)
@pytest.mark.parametrize(("tool", "args"), SEARCHES)
@pytest.mark.parametrize("mode", ["auto", "yolo"])
async def test_a_search_of_the_workspace_does_not_show_denied_paths(
    root: Path, mode: PermissionMode, tool: str, args: dict[str, str], rule: str
) -> None:
    async with daemon_in(root, mode, deny=(rule,)) as bench:
        result = await result_of(bench, tool, **args)
    assert "secret/" not in result
    assert "public" in result


@pytest.mark.parametrize("path", ["secret/key", "link/key", "public/link", "public/../secret/key"])
@pytest.mark.parametrize("tool", ["read", "grep"])
async def test_a_denied_file_is_out_of_reach_by_every_path(
    root: Path, tool: str, path: str
) -> None:
    args = {"path": path} if tool == "read" else {"path": path, "pattern": "."}
    async with daemon_in(root, "yolo", deny=("read(secret/**)",)) as bench:
        result = await result_of(bench, tool, **args)
    assert result.startswith("tool_error: tool_blocked")
    assert KEY not in result


@pytest.mark.parametrize("path", ["public/link", "shortcut", "link/deep/key"])
@pytest.mark.parametrize("tool", ["read", "grep"])
async def test_a_denied_name_that_is_a_link_leads_nowhere(root: Path, tool: str, path: str) -> None:
    (root / "shortcut").symlink_to("public/link")
    args = {"path": path} if tool == "read" else {"path": path, "pattern": "."}
    async with daemon_in(root, "yolo", deny=("read(link)",)) as bench:
        result = await result_of(bench, tool, **args)
        assert result.startswith("tool_error: tool_blocked")
        # The target has a name of its own, which no rule is about.
        assert KEY in await result_of(bench, "read", path="secret/key")


async def test_a_permission_for_a_link_allows_only_what_it_leads_to(root: Path) -> None:
    async with daemon_in(root, "ask") as bench:
        request = await bench.asked(calls(("read", '{"path": "public/link"}')))
        assert request["rule"] == "read(secret/key)"


async def test_a_write_by_a_protected_name_that_is_a_link_is_asked_about_and_then_made(
    root: Path,
) -> None:
    (root / "AGENTS.md").symlink_to("public/key")
    async with daemon_in(root, "auto") as bench:
        args = json.dumps({"path": "AGENTS.md", "content": "changed"})
        request = await bench.asked(calls(("write", args)))
        await bench.client.request("confirm_tool", **naming(request, "once"))
        await bench.events.until("agent_end")
    assert (root / "public" / "key").read_text() == "changed"


async def test_a_search_skips_paths_that_require_approval_unless_it_was_approved(
    root: Path,
) -> None:
    async with daemon_in(root, "auto", ask=("read(secret/**)",)) as bench:
        result = await result_of(bench, "grep", pattern=".")
        assert "public/key" in result
        assert "secret/key" not in result
        request = await bench.asked(calls(("grep", '{"pattern": ".", "path": "secret"}')))
        await bench.client.request("confirm_tool", **naming(request, "once"))
        end = (await bench.events.until("tool_execution_end"))["payload"]
        assert "secret/deep/key" in end["result"]


# --- changes between the request and the call ----------------------------------------------------


async def result_after_swap(bench: Bench, root: Path, tool: str, **args: str) -> str:
    """Replace the folder of a call by a link while it waits, approve it, and return its result."""
    request = await bench.asked(calls((tool, json.dumps(args))))
    (root / "folder").rename(root / "elsewhere")
    (root / "folder").symlink_to(TARGETS[tool])
    await bench.client.request("confirm_tool", **naming(request, "once"))
    return str((await bench.events.until("tool_execution_end"))["payload"]["result"])


TARGETS = {"read": "secret", "grep": "secret", "write": ".git", "edit": ".git"}


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("read", {"path": "folder/key"}),
        ("grep", {"path": "folder/key", "pattern": "."}),
        ("grep", {"path": "folder", "pattern": "."}),
    ],
)
async def test_a_link_created_after_the_request_reaches_no_denied_file(
    root: Path, tool: str, args: dict[str, str]
) -> None:
    async with daemon_in(root, "ask", deny=("read(secret/**)",)) as bench:
        result = await result_after_swap(bench, root, tool, **args)
    assert "path_denied" in result
    assert KEY not in result


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("write", {"path": "folder/key", "content": "changed"}),
        ("write", {"path": "folder/hooks/post-commit", "content": "changed"}),
        ("write", {"path": "folder/new/file", "content": "changed"}),
        ("edit", {"path": "folder/key", "old_text": "as it was", "new_text": "changed"}),
    ],
)
async def test_a_link_created_after_the_request_reaches_no_protected_path(
    root: Path, tool: str, args: dict[str, str]
) -> None:
    async with daemon_in(root, "ask") as bench:
        result = await result_after_swap(bench, root, tool, **args)
    assert "path_denied" in result
    assert (root / ".git" / "key").read_text() == "as it was"
    assert sorted(path.name for path in (root / ".git").rglob("*")) == ["hooks", "key"]


async def test_approving_one_protected_path_opens_no_other(root: Path) -> None:
    (root / "AGENTS.md").write_text("as it was")
    async with daemon_in(root, "auto") as bench:
        args = json.dumps({"path": "AGENTS.md", "content": "changed"})
        request = await bench.asked(calls(("write", args)))
        (root / "AGENTS.md").unlink()
        (root / "AGENTS.md").symlink_to(".git/key")
        await bench.client.request("confirm_tool", **naming(request, "once"))
        end = (await bench.events.until("tool_execution_end"))["payload"]
        assert "path_denied" in end["result"]
        (root / "AGENTS.md").unlink()
        request = await bench.asked(calls(("write", args)))
        await bench.client.request("confirm_tool", **naming(request, "once"))
        await bench.events.until("tool_execution_end")
    assert (root / "AGENTS.md").read_text() == "changed"
    assert (root / ".git" / "key").read_text() == "as it was"
