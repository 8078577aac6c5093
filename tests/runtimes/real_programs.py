"""The programs of vendors that the contract is tried with: their packages, settings, and what they lack.

``scripts/runtimes`` installs them into a folder of their own (``CACHE``) and runs the contract with
``--programs``. Each talks to a model server of ours.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

CACHE: Final = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nousd" / "runtimes"
)
"""Has a folder for each program and version, and one for Node."""

NODE: Final = ("node", "22.23.3")
"""The package that brings the Node of the programs, and its version."""

_KEY: Final = "key-of-the-stub"


@dataclass(frozen=True)
class Surroundings:
    """What a program finds when it is started.

    Args:
        home: its home folder.
        work: the workspace.
        origin: the address of the model server.
        has_own_tools: whether it may use its own tools, where it asks.
    """

    home: Path
    work: Path
    origin: str
    has_own_tools: bool = False


@dataclass(frozen=True, kw_only=True)
class RealProgram:
    """A program of a vendor.

    Args:
        name: of the row and of the runtime.
        package: of npm.
        binary: the name of its program.
        kind: the adapter.
        words: the command line after the program, which takes its own tools from it.
        variables: of the environment that it receives, by way of ``env`` in the daemon's settings.
        prepare: writes its settings.
        shell: makes the arguments of a call of its own tool for commands, whose name stands before.
        after_kill: how a new life begins soon after the end of a turn: some lose their session.
        cannot: rows of the contract that it cannot fulfil -> why.
    """

    name: str
    package: str
    version: str
    binary: str
    kind: str
    variables: Callable[[Surroundings], Mapping[str, str]]
    shell: tuple[str, Callable[[str], Mapping[str, Any]]]
    words: Callable[[Surroundings], Sequence[str]] = lambda _: ()
    prepare: Callable[[Surroundings], None] = lambda _: None
    after_kill: str = "native"
    cannot: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Return the folder in which it is installed."""
        return CACHE / f"{self.binary}-{self.version}"

    @property
    def path(self) -> Path:
        """Return its program."""
        return binaries(self.folder) / self.binary


def binaries(folder: Path) -> Path:
    """Return where npm puts the programs of what is installed in a folder."""
    return folder / "node_modules" / ".bin"


def node_folder() -> Path:
    """Return the folder in which Node is installed."""
    return CACHE / "-".join(NODE)


def write(path: Path, content: str | Mapping[str, Any]) -> None:
    """Write a file, with its folders; a mapping as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


# --- what they find in a workspace --------------------------------------------------------------

PLANTED_WORDS: Final = "planted-instructions"
"""In every file of instructions that one of the programs may read by itself."""

_PLUGIN: Final = """
import { writeFileSync } from "fs"
export const Planted = async () => { writeFileSync("FOLDER/opencode-plugin", ""); return {} }
"""


def plant(work: Path, folder: Path) -> None:
    """Write files of all programs into a workspace: those with code that runs leave something in a
    folder, those with instructions hold ``PLANTED_WORDS``.
    """

    def touch(name: str) -> list[str]:
        return ["touch", str(folder / name)]

    def server(name: str) -> dict[str, Any]:
        command, *args = touch(name)
        return {"planted": {"command": command, "args": args}}

    hook = {"hooks": [{"type": "command", "command": " ".join(touch("claude-hook"))}]}
    events = ("SessionStart", "UserPromptSubmit", "PreToolUse", "Stop")
    write(work / ".claude/settings.json", {"hooks": {event: [hook] for event in events}})
    write(work / ".mcp.json", {"mcpServers": server("mcp-json")})
    write(work / ".opencode/plugin/planted.js", _PLUGIN.replace("FOLDER", str(folder)))
    local = {"planted": {"type": "local", "command": touch("opencode-mcp")}}
    write(work / "opencode.json", {"mcp": local})
    discovery = f"sh -c 'touch {folder / 'gemini-discovery'}; echo []'"
    gemini = {"mcpServers": server("gemini-mcp"), "tools": {"discoveryCommand": discovery}}
    write(work / ".gemini/settings.json", gemini)
    command = json.dumps(touch("codex-notify"))
    write(
        work / ".codex/config.toml",
        f'notify = {command}\n[mcp_servers.planted]\ncommand = "touch"\n'
        f"args = {json.dumps(touch('codex-mcp')[1:])}\n",
    )
    for name in ("CLAUDE.md", "CLAUDE.local.md", ".claude/CLAUDE.md", "GEMINI.md", "CONTEXT.md"):
        write(work / name, PLANTED_WORDS)


# --- Claude Code -----------------------------------------------------------------------------


def _anthropic(around: Surroundings) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": around.origin,
        "ANTHROPIC_API_KEY": _KEY,
        "CLAUDE_CONFIG_DIR": str(around.home / "claude"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def _described(command: str) -> dict[str, Any]:
    return {"command": command, "description": "as asked"}


CLAUDE: Final = RealProgram(
    name="claude",
    package="@anthropic-ai/claude-code",
    version="2.1.332",
    binary="claude",
    kind="claude",
    variables=_anthropic,
    shell=("Bash", _described),
)

CLAUDE_ACP: Final = RealProgram(
    name="claude-agent-acp",
    package="@agentclientprotocol/claude-agent-acp",
    version="0.101.0",
    binary="claude-agent-acp",
    kind="acp",
    # With so many tools it would hide ours behind a search.
    variables=lambda around: {**_anthropic(around), "ENABLE_TOOL_SEARCH": "false"},
    shell=("Bash", _described),
    cannot={
        "only our tools": "it has all tools of Claude Code",
    },
)

# --- Codex -----------------------------------------------------------------------------------

_CODEX_SETTINGS: Final = """
model = "model-of-the-stub"
model_catalog_json = "{catalog}"
project_doc_max_bytes = 0
model_provider = "stub"
[model_providers.stub]
name = "stub"
base_url = "{origin}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
request_max_retries = 0
stream_max_retries = 0
supports_websockets = false
[projects."{work}"]
trust_level = "untrusted"
"""


def _codex_variables(around: Surroundings) -> dict[str, str]:
    return {"CODEX_HOME": str(around.home / "codex"), "OPENAI_API_KEY": _KEY}


_CODEX_MODEL: Final = {
    "slug": "model-of-the-stub",
    "display_name": "model of the stub",
    "supported_reasoning_levels": [],
    "shell_type": "unified_exec",
    "visibility": "list",
    "supported_in_api": True,
    "priority": 1,
    "base_instructions": "Do as you are told.",
    "supports_reasoning_summaries": True,
    "support_verbosity": False,
    "supports_parallel_tool_calls": True,
    "experimental_supported_tools": [],
    "truncation_policy": {"mode": "bytes", "limit": 10_000},
    "context_window": 100_000,
    "input_modalities": ["text", "image"],
}
"""A model that hides no tools behind a search, as those of the program's own catalogue do."""


def _codex_settings(around: Surroundings) -> None:
    folder = around.home / "codex"
    catalog = folder / "models.json"
    write(catalog, {"models": [_CODEX_MODEL]})
    names = {"origin": around.origin, "catalog": catalog, "work": around.work}
    write(folder / "config.toml", _CODEX_SETTINGS.format(**names))


def _escalated(command: str) -> dict[str, Any]:
    return {"cmd": command, "sandbox_permissions": "require_escalated", "justification": "asked"}


CODEX: Final = RealProgram(
    name="codex",
    package="@openai/codex",
    version="0.171.0",
    binary="codex",
    kind="codex",
    variables=_codex_variables,
    prepare=_codex_settings,
    shell=("exec_command", _escalated),
)

CODEX_ACP: Final = RealProgram(
    name="codex-acp",
    package="@agentclientprotocol/codex-acp",
    version="2.6.0",
    binary="codex-acp",
    kind="acp",
    # In its usual mode a model judges each call, ours among them.
    variables=lambda around: {**_codex_variables(around), "INITIAL_AGENT_MODE": "read-only"},
    prepare=_codex_settings,
    shell=("exec_command", _escalated),
    cannot={
        "only our tools": "it has the tools of Codex",
        "failure of the model": "it says the failure as its own text, and ends its turn as usual",
    },
)

# --- OpenCode --------------------------------------------------------------------------------


def _opencode_settings(around: Surroundings) -> dict[str, Any]:
    modalities = {"input": ["text", "image"], "output": ["text"]}
    model = {"name": "m", "attachment": True, "reasoning": True, "modalities": modalities}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{around.origin}/v1", "apiKey": _KEY},
        "models": {"m": model},
    }
    return {
        "model": "stub/m",
        "autoupdate": False,
        "share": "disabled",
        "provider": {"stub": provider},
        "agent": {"title": {"disable": True}},
    }


def _opencode_user(around: Surroundings) -> None:
    write(around.home / "opencode" / "opencode.json", _opencode_settings(around))


OPENCODE: Final = RealProgram(
    name="opencode",
    package="opencode-ai",
    version="1.18.33",
    binary="opencode",
    kind="opencode",
    variables=lambda around: {"XDG_CONFIG_HOME": str(around.home)},
    prepare=_opencode_user,
    shell=("bash", _described),
)


def _opencode_acp(around: Surroundings) -> dict[str, str]:
    rights = {"*": "ask" if around.has_own_tools else "deny", "nousd_*": "allow"}
    settings = {**_opencode_settings(around), "permission": rights}
    return {
        "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
        "OPENCODE_PURE": "1",
    }


OPENCODE_ACP: Final = replace(
    OPENCODE,
    name="opencode-acp",
    kind="acp",
    variables=_opencode_acp,
    words=lambda _: ("acp",),
    prepare=lambda _: None,
)

# --- Gemini CLI ------------------------------------------------------------------------------

_GEMINI_TOOLS: Final = (
    *("activate_skill", "enter_plan_mode", "glob", "google_web_search", "grep_search"),
    *("invoke_agent", "list_background_processes", "list_directory", "read_background_output"),
    *("read_file", "read_many_files", "replace", "run_shell_command", "save_memory"),
    *("update_topic", "web_fetch", "write_file", "write_todos"),
)


def _gemini_settings(around: Surroundings) -> None:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
        "hooksConfig": {"enabled": False},
    }
    write(around.home / "system.json", settings)
    rules = (
        f'[[rule]]\ntoolName = "{tool}"\ndecision = "deny"\npriority = 999\n'
        for tool in _GEMINI_TOOLS
    )
    write(around.home / "policy.toml", "".join(rules))


def _gemini_words(around: Surroundings) -> list[str]:
    words = ["--acp", "-m", "gemini-2.5-flash", "-e", "none"]
    words += ["--allowed-mcp-server-names", "nousd"]
    policy = [] if around.has_own_tools else ["--admin-policy", str(around.home / "policy.toml")]
    return words + policy


GEMINI: Final = RealProgram(
    name="gemini",
    package="@google/gemini-cli",
    version="0.61.0",
    binary="gemini",
    kind="acp",
    variables=lambda around: {
        "GEMINI_API_KEY": _KEY,
        "GEMINI_CLI_NO_RELAUNCH": "true",
        "GEMINI_CLI_SYSTEM_SETTINGS_PATH": str(around.home / "system.json"),
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "GOOGLE_GEMINI_BASE_URL": around.origin,
    },
    words=_gemini_words,
    prepare=_gemini_settings,
    shell=("run_shell_command", _described),
    # It loads a session only in a later minute than that in which it began.
    after_kill="reconstruct",
)

PROGRAMS: Final = {
    program.name: program
    for program in (CLAUDE, CODEX, OPENCODE, GEMINI, OPENCODE_ACP, CLAUDE_ACP, CODEX_ACP)
}
