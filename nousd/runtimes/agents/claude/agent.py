"""The command line and environment of Claude Code (``protocol/runtimes/claude.md``)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import trio

from nousd.runtimes.agents.auth import auth_facts
from nousd.runtimes.agents.capabilities import USUAL
from nousd.runtimes.agents.claude.life import ClaudeLife
from nousd.runtimes.agents.interface import Resume, Start, Write
from nousd.runtimes.agents.obeyed import HiddenFiles
from nousd.runtimes.agents.spaces import OwnVariables
from nousd.runtimes.agents.tools.mcp_tools import SERVER
from nousd.tools.environment import filter_environment
from nousd.wire.codec.decoding import decode_json
from nousd.wire.codec.envelope import encode_json
from nousd.wire.objects.runtimes import AuthFacts

INHERITED_VARIABLES: Final = (
    *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "CLAUDE_CONFIG_DIR"),
    *("CLAUDE_CODE_OAUTH_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "NODE_EXTRA_CA_CERTS"),
)
"""Variables that the program receives from the daemon's environment, if they are set."""

_KEYS: Final = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")

OWN_VARIABLES: Final = OwnVariables(
    frozenset(_KEYS), frozenset({"CLAUDE_CONFIG_DIR"}), ("TMPDIR", "CLAUDE_CODE_TMPDIR")
)

_SETTINGS_BYTES_MAX: Final = 16 * 1024 * 1024
_ADDRESS: Final = r"[^\s@]{1,100}@[^\s@]{1,150}"

_TEMPORARY: Final = "/tmp"  # noqa: S108 - the program's own choice
_SOCKETS: Final = "cc-socks"

_QUIET: Final = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}


class _Account(msgspec.Struct):
    address: str = msgspec.field(name="emailAddress", default="")


class _Settings(msgspec.Struct):
    account: _Account | None = msgspec.field(name="oauthAccount", default=None)


class Claude:
    """Implements ``Agent``.

    Args:
        name: the name of the runtime.
        program: the command line from the user's settings, without the arguments added here.
        inherited: variables of the daemon's environment that the program receives.
    """

    capabilities = msgspec.structs.replace(
        USUAL,
        supports_parallel_tool_calls=False,
        max_outstanding_tool_calls=1,
        thinking_levels=("low", "medium", "high"),
        supported_isolation_modes=("subprocess", "server_side"),
    )

    def __init__(self, name: str, program: Sequence[str], inherited: Mapping[str, str]) -> None:
        self.name = name
        self._program = tuple(program)
        self._inherited = dict(inherited)

    def command(self, start: Start, resume: Resume) -> Sequence[str]:
        """See ``Agent.command``."""
        servers = {"mcpServers": {SERVER: {"type": "sdk", "name": SERVER}}}
        return [
            *self._program,
            *("-p", "--input-format", "stream-json", "--output-format", "stream-json"),
            *("--verbose", "--include-partial-messages", "--permission-prompt-tool", "stdio"),
            *(("--tools", "") if start.own_tools == "off" else ()),
            # No file of the workspace may configure the program.
            *("--setting-sources", "", "--strict-mcp-config"),
            *("--mcp-config", encode_json(servers).decode()),
            *(("--model", start.model) if start.model else ()),
            *(("--effort", start.thinking) if start.thinking else ()),
            *(("--resume", resume.agent_session_id) if resume.kind == "native" else ()),
        ]

    def variables(self, start: Start) -> Mapping[str, str]:  # noqa: ARG002
        """See ``Agent.variables``."""
        return {**_QUIET, **self._inherited}

    def auth_facts(self, environment: Mapping[str, str]) -> AuthFacts:
        """See ``Agent.auth_facts``."""
        home = Path(environment.get("HOME", "~")).expanduser()
        chosen = environment.get("CLAUDE_CONFIG_DIR")
        folder = Path(chosen) if chosen else home / ".claude"
        return auth_facts(
            self._program,
            environment,
            keys=_KEYS,
            file=folder / ".credentials.json",
            login=("auth", "login"),
            logout=("auth", "logout"),
            account=_account((folder if chosen else home) / ".claude.json"),
        )

    def session_basis(self, start: Start) -> str:  # noqa: ARG002
        """See ``Agent.session_basis``."""
        return ""

    def list_hidden_paths(self, start: Start) -> HiddenFiles:
        """See ``Agent.list_hidden_paths``. Programs of this kind on one machine talk to each other over
        sockets in these folders, which are among their temporary files.
        """
        environment = {**filter_environment(), **self.variables(start)}
        temporary = environment.get("CLAUDE_CODE_TMPDIR") or environment.get("TMPDIR") or _TEMPORARY
        default_folder = f"{_TEMPORARY}/{_SOCKETS}-{os.getuid()}"
        return HiddenFiles(rendezvous=(Path(temporary, _SOCKETS), Path(default_folder)))

    def life(
        self,
        start: Start,
        resume: Resume,
        write: Write,
        nursery: trio.Nursery,
        variables: Mapping[str, str],  # noqa: ARG002
    ) -> ClaudeLife:
        """See ``Agent.life``."""
        return ClaudeLife(start, resume, write, nursery)


def _account(file: Path) -> str:
    """Return the account named in the program's settings file, which has no keys; empty if none is."""
    try:
        with file.open("rb") as settings:
            account_settings = decode_json(settings.read(_SETTINGS_BYTES_MAX), type=_Settings)
    except (OSError, msgspec.DecodeError):
        return ""
    address = account_settings.account.address if account_settings.account is not None else ""
    return address if re.fullmatch(_ADDRESS, address) else ""


AGENT: Final = Claude
"""Creates an agent of this kind."""
