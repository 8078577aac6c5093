"""The command line and environment of ``opencode serve`` (``protocol/runtimes/opencode.md``)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import trio
from msgspec import UNSET

from nousd.runtimes.agents.auth import auth_facts
from nousd.runtimes.agents.capabilities import USUAL
from nousd.runtimes.agents.interface import Resume, Start, Write
from nousd.runtimes.agents.obeyed import OPENCODE_FILES, HiddenFiles, list_obeyed_paths
from nousd.runtimes.agents.opencode.life import OpencodeLife
from nousd.runtimes.agents.opencode.told import program_settings
from nousd.runtimes.agents.spaces import OwnVariables
from nousd.wire.codec.canonical_json import digest
from nousd.wire.codec.envelope import encode_json
from nousd.wire.objects.runtimes import AuthFacts

_KEYS: Final = ("OPENCODE_API_KEY",)

INHERITED_VARIABLES: Final = (
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"),
    *_KEYS,
)
"""Variables that the program receives from the daemon's environment, if they are set. The settings name
the variables with the keys of other vendors.
"""

OWN_VARIABLES: Final = OwnVariables(
    frozenset(_KEYS), frozenset(name for name in INHERITED_VARIABLES if name[:4] == "XDG_")
)

_PASSWORD: Final = "OPENCODE_SERVER_PASSWORD"  # noqa: S105  the name of a variable
_PASSWORD_BYTES: Final = 32

_ALONE: Final = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_CLAUDE_CODE": "1",
    "OPENCODE_DISABLE_EXTERNAL_SKILLS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
    "OPENCODE_PURE": "1",
}
"""Variables that keep the workspace from configuring the program, and plugins from starting."""


class Opencode:
    """Implements ``Agent``.

    Args:
        name: the name of the runtime.
        program: the command line from the user's settings, without the arguments added here.
        inherited: variables of the daemon's environment that the program receives.
    """

    capabilities = msgspec.structs.replace(
        USUAL, steer_model="in_turn", thinking_levels=("low", "medium", "high")
    )

    def __init__(self, name: str, program: Sequence[str], inherited: Mapping[str, str]) -> None:
        self.name = name
        self._program = tuple(program)
        self._inherited = dict(inherited)

    def command(self, start: Start, resume: Resume) -> Sequence[str]:  # noqa: ARG002
        """See ``Agent.command``."""
        return [*self._program, "serve", "--hostname", "127.0.0.1", "--port", "0", "--pure"]

    def variables(self, start: Start) -> Mapping[str, str]:
        """See ``Agent.variables``. Each call returns a new password."""
        return {
            **self._inherited,
            **_ALONE,
            "OPENCODE_CONFIG_CONTENT": encode_json(program_settings(start)).decode(),
            _PASSWORD: secrets.token_urlsafe(_PASSWORD_BYTES),
        }

    def auth_facts(self, environment: Mapping[str, str]) -> AuthFacts:
        """See ``Agent.auth_facts``. The program's settings may also contain keys; they are not read."""
        home = Path(environment.get("HOME", "~")).expanduser()
        folder = Path(environment.get("XDG_DATA_HOME") or home / ".local" / "share")
        found = auth_facts(
            self._program,
            environment,
            keys=_KEYS,
            file=folder / "opencode" / "auth.json",
            login=("auth", "login"),
            logout=("auth", "logout"),
        )
        if found.is_logged_in:
            return found
        instructions = f"unless its settings have a key, {found.instructions}"
        return msgspec.structs.replace(found, is_logged_in=UNSET, instructions=instructions)

    def session_basis(self, start: Start) -> str:
        """See ``Agent.session_basis``: a session keeps its workspace, and without another model and
        level it continues with the last ones.
        """
        basis = [str(start.workdir), bool(start.model), bool(start.thinking)]
        return digest(encode_json(basis))

    def list_hidden_paths(self, start: Start) -> HiddenFiles:
        """See ``Agent.list_hidden_paths``: the program imports the plugins of each folder up to the
        root, regardless of its settings and variables.
        """
        return HiddenFiles(list_obeyed_paths(start.workdir, OPENCODE_FILES))

    def life(
        self,
        start: Start,
        resume: Resume,
        write: Write,  # noqa: ARG002
        nursery: trio.Nursery,
        variables: Mapping[str, str],
    ) -> OpencodeLife:
        """See ``Agent.life``."""
        return OpencodeLife(start, resume, nursery, variables[_PASSWORD])


AGENT: Final = Opencode
"""Creates an agent of this kind."""
