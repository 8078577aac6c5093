"""The command line of a program that speaks the Agent Client Protocol (``protocol/runtimes/acp.md``)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import trio

from nousd.runtimes.agents.acp.life import AcpLife
from nousd.runtimes.agents.capabilities import USUAL
from nousd.runtimes.agents.interface import Resume, Start, Write
from nousd.runtimes.agents.obeyed import INSTRUCTIONS, PROGRAM_FILES, HiddenFiles, list_obeyed_paths
from nousd.runtimes.agents.spaces import OwnVariables
from nousd.wire.codec.canonical_json import digest
from nousd.wire.objects.runtimes import AuthFacts

INHERITED_VARIABLES: Final = (
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"),
)
"""Variables that the program receives from the daemon's environment, if they are set. None contains a
key: the settings name the variables with the keys that the program needs.
"""

OWN_VARIABLES: Final = OwnVariables(
    folders=frozenset(name for name in INHERITED_VARIABLES if name[:4] == "XDG_")
)


_PASSWORD: Final = "OPENCODE_SERVER_PASSWORD"  # noqa: S105  the name of a variable
_PASSWORD_BYTES: Final = 32


class Acp:
    """Implements ``Agent``.

    Args:
        name: the name of the runtime.
        program: the command line that makes the program speak the protocol, from the settings.
        inherited: variables of the daemon's environment that the program receives.
    """

    capabilities = msgspec.structs.replace(
        USUAL,
        tool_execution_model="hybrid",
        permission_model="hybrid",
        thinking_levels=("off", "low", "medium", "high"),
    )
    """The capabilities of the protocol. Whether a program lacks one shows only when it runs."""

    def __init__(self, name: str, program: Sequence[str], inherited: Mapping[str, str]) -> None:
        self.name = name
        self._program = tuple(program)
        self._inherited = dict(inherited)

    def command(self, start: Start, resume: Resume) -> Sequence[str]:  # noqa: ARG002
        """See ``Agent.command``."""
        return self._program

    def variables(self, start: Start) -> Mapping[str, str]:  # noqa: ARG002
        """See ``Agent.variables``. OpenCode also opens a local port, which obeys any client unless a
        password is set.
        """
        return {**self._inherited, _PASSWORD: secrets.token_urlsafe(_PASSWORD_BYTES)}

    def auth_facts(self, _environment: Mapping[str, str]) -> AuthFacts:
        """See ``Agent.auth_facts``: the protocol does not say where a program keeps its log-in."""
        return AuthFacts(instructions=f"log in with the words of {self._program[0]} itself")

    def session_basis(self, start: Start) -> str:
        """See ``Agent.session_basis``: a session receives its instructions only when it begins."""
        return digest(start.instructions.encode())

    def list_hidden_paths(self, start: Start) -> HiddenFiles:
        """See ``Agent.list_hidden_paths``: the kind of program is not known, so the files of all known
        programs are hidden. Instruction files are hidden too, because the daemon sends instructions.
        They stay visible to a program with tools of its own, which the user may ask to change them.
        """
        texts = INSTRUCTIONS if start.own_tools == "off" else ()
        return HiddenFiles(
            list_obeyed_paths(start.workdir, PROGRAM_FILES), list_obeyed_paths(start.workdir, texts)
        )

    def life(
        self,
        start: Start,
        resume: Resume,
        write: Write,
        nursery: trio.Nursery,
        variables: Mapping[str, str],  # noqa: ARG002
    ) -> AcpLife:
        """See ``Agent.life``."""
        return AcpLife(start, resume, write, nursery)


AGENT: Final = Acp
"""Creates an agent of this kind."""
