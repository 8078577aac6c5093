"""The command line and environment of Codex (``protocol/runtimes/codex.md``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from nousd.runtimes.agents.auth import auth_facts
from nousd.runtimes.agents.capabilities import USUAL
from nousd.runtimes.agents.codex.life import CodexLife
from nousd.runtimes.agents.codex.told import program_settings
from nousd.runtimes.agents.interface import Resume, Start, Write
from nousd.runtimes.agents.obeyed import HiddenFiles
from nousd.runtimes.agents.spaces import OwnVariables
from nousd.wire.codec.canonical_json import digest
from nousd.wire.codec.envelope import encode_json
from nousd.wire.objects.runtimes import AuthFacts

INHERITED_VARIABLES: Final = (
    *("CODEX_HOME", "CODEX_API_KEY", "OPENAI_API_KEY", "SSL_CERT_FILE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
)
"""Variables that the program receives from the daemon's environment, if they are set."""

_KEYS: Final = ("CODEX_API_KEY", "OPENAI_API_KEY")

OWN_VARIABLES: Final = OwnVariables(frozenset(_KEYS), frozenset({"CODEX_HOME"}))


class Codex:
    """Implements ``Agent``.

    Args:
        name: the name of the runtime.
        program: the command line from the user's settings, without the arguments added here.
        inherited: variables of the daemon's environment that the program receives.
    """

    capabilities = msgspec.structs.replace(
        USUAL,
        reconstruct_model="structured",
        steer_model="in_turn",
        thinking_levels=("low", "medium", "high"),
        supported_isolation_modes=("subprocess", "server_side"),
    )

    def __init__(self, name: str, program: Sequence[str], inherited: Mapping[str, str]) -> None:
        self.name = name
        self._program = tuple(program)
        self._inherited = dict(inherited)

    def command(self, start: Start, resume: Resume) -> Sequence[str]:  # noqa: ARG002
        """See ``Agent.command``."""
        settings = [f"{key}={_toml(value)}" for key, value in program_settings(start).items()]
        return [*self._program, "app-server", *(word for each in settings for word in ("-c", each))]

    def variables(self, start: Start) -> Mapping[str, str]:  # noqa: ARG002
        """See ``Agent.variables``."""
        return self._inherited

    def auth_facts(self, environment: Mapping[str, str]) -> AuthFacts:
        """See ``Agent.auth_facts``. Only the file with the keys names the account, so it stays
        unknown.
        """
        home = Path(environment.get("HOME", "~")).expanduser()
        folder = environment.get("CODEX_HOME") or home / ".codex"
        return auth_facts(
            self._program,
            environment,
            keys=_KEYS,
            file=Path(folder) / "auth.json",
            login=("login",),
            logout=("logout",),
        )

    def session_basis(self, start: Start) -> str:
        """See ``Agent.session_basis``: a thread keeps its workspace, instructions and offered tools."""
        basis = [str(start.workdir), start.instructions, msgspec.to_builtins(start.tools)]
        return digest(encode_json(basis))

    def list_hidden_paths(self, start: Start) -> HiddenFiles:  # noqa: ARG002
        """See ``Agent.list_hidden_paths``."""
        return HiddenFiles()

    def life(
        self,
        start: Start,
        resume: Resume,
        write: Write,
        nursery: trio.Nursery,
        variables: Mapping[str, str],  # noqa: ARG002
    ) -> CodexLife:
        """See ``Agent.life``."""
        return CodexLife(start, resume, write, nursery)


def _toml(value: Any) -> str:
    """Return a value in TOML, for the program's settings; all but tables are written as in JSON."""
    if not isinstance(value, dict):
        return encode_json(value).decode()
    pairs = [f"{encode_json(key).decode()}={_toml(each)}" for key, each in value.items()]
    return f"{{{','.join(pairs)}}}"


AGENT: Final = Codex
"""Creates an agent of this kind."""
