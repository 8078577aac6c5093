"""The command line and environment of Claude Code (``protocol/runtimes/claude.md``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import trio

from nousd.runtimes.agents.auth import auth_facts
from nousd.runtimes.agents.capabilities import USUAL
from nousd.runtimes.agents.claude.life import ClaudeLife
from nousd.runtimes.agents.interface import Resume, Start, Write
from nousd.runtimes.agents.mcp_tools import SERVER
from nousd.wire.codec.envelope import encode_json
from nousd.wire.objects.runtimes import AuthFacts

PASSED_ON: Final = (
    *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "CLAUDE_CONFIG_DIR"),
    *("CLAUDE_CODE_OAUTH_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "NODE_EXTRA_CA_CERTS"),
)
"""Variables of the daemon's environment that the program receives, where they are set."""

_QUIET: Final = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}


class Claude:
    """Implements ``Agent``.

    Args:
        name: that of the runtime.
        program: the command line that the user's settings name, without our arguments.
        passed_on: variables of the daemon's environment that the program receives.
    """

    capabilities = msgspec.structs.replace(
        USUAL,
        supports_parallel_tool_calls=False,
        max_outstanding_tool_calls=1,
        thinking_levels=("low", "medium", "high"),
    )

    def __init__(self, name: str, program: Sequence[str], passed_on: Mapping[str, str]) -> None:
        self.name = name
        self._program = tuple(program)
        self._passed_on = dict(passed_on)

    def command(self, start: Start, resume: Resume) -> Sequence[str]:
        """See ``Agent.command``."""
        servers = {"mcpServers": {SERVER: {"type": "sdk", "name": SERVER}}}
        return [
            *self._program,
            *("-p", "--input-format", "stream-json", "--output-format", "stream-json"),
            *("--verbose", "--include-partial-messages", "--permission-prompt-tool", "stdio"),
            *(("--tools", "") if start.own_tools == "off" else ()),
            # Nothing of the workspace configures it.
            *("--setting-sources", "", "--strict-mcp-config"),
            *("--mcp-config", encode_json(servers).decode()),
            *(("--model", start.model) if start.model else ()),
            *(("--effort", start.thinking) if start.thinking else ()),
            *(("--resume", resume.agent_session_id) if resume.kind == "native" else ()),
        ]

    def variables(self, start: Start) -> Mapping[str, str]:  # noqa: ARG002
        """See ``Agent.variables``."""
        return {**_QUIET, **self._passed_on}

    def auth_facts(self) -> AuthFacts:
        """See ``Agent.auth_facts``."""
        folder = self._passed_on.get("CLAUDE_CONFIG_DIR") or Path("~/.claude").expanduser()
        return auth_facts(
            self._program,
            self._passed_on,
            keys=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
            file=Path(folder) / ".credentials.json",
            login=("auth", "login"),
            logout=("auth", "logout"),
        )

    def session_basis(self, start: Start) -> str:  # noqa: ARG002
        """See ``Agent.session_basis``."""
        return ""

    def life(self, start: Start, resume: Resume, write: Write, nursery: trio.Nursery) -> ClaudeLife:
        """See ``Agent.life``."""
        return ClaudeLife(start, resume, write, nursery)


AGENT: Final = Claude
"""Makes an agent of this kind."""
