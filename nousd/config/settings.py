"""The settings of the daemon and their bounds.

``Settings`` is the only list. A field is a setting: its name is the key in the file, with dashes the
flag, in capitals behind ``NOUSD_`` the environment variable; its annotation holds the bounds and the
help text. Which of the places wins that may name one is ``resolve``'s.

A few fields are no settings of their own: what the file's tables say of providers, models and aliases
(``models_file``), ``config_file``, which says where the file was, and ``is_mode_insisted_on``, by which
a project's word on ``permission_mode`` comes behind a flag or variable and before the user's file.
"""

# No annotations from the future here: each of them would be compiled a second time, at every start.
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, field

from nousd.config.mcp_file import ConfiguredMcpServer
from nousd.config.models_file import API_BASE_CHARS_MAX, TABLES, ModelTable
from nousd.config.permissions_file import PERMISSIONS, PermissionsTable
from nousd.config.providers import MOCK, ConfiguredProvider
from nousd.config.values import Name, Regex, describe
from nousd.runtime_paths import locations
from nousd.wire.limits import LINE_BYTES_MAX, LONG_LINES_BYTES_MAX, NAME_CHARS_MAX
from nousd.wire.objects.entries import PermissionMode


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be chosen. Paths are absolute."""

    socket: Annotated[
        Path,
        Meta(
            description="Unix socket for commands. Events are on the same path with '.events'. "
            "[default: nousd.sock in the user's runtime folder]"
        ),
    ] = field(default_factory=locations.default_socket)
    state_dir: Annotated[
        Path,
        Meta(
            description="Folder of the log. One daemon per folder. [default: in the user's state folder]"
        ),
    ] = field(default_factory=locations.default_state_dir)
    workdir: Annotated[
        Path,
        Meta(description="Folder the tools work in and cannot leave. [default: the current one]"),
    ] = field(default_factory=Path.cwd)
    workspaces: Annotated[
        tuple[Path, ...],
        Meta(
            max_length=64,
            description="Folder in which, and below which, sessions may also work. Each session stays "
            "in its own. Repeatable.",
        ),
    ] = ()
    provider: Annotated[
        str,
        Meta(
            max_length=NAME_CHARS_MAX,
            description="Whose models are called: openai, openai-responses, anthropic, gemini, one of "
            "the settings file, auto (the first that is configured, else a server on this machine), or "
            "mock, which answers by itself, without a network.",
        ),
    ] = MOCK
    model: Annotated[
        str | None,
        Meta(
            max_length=NAME_CHARS_MAX,
            description="Model of sessions that name none, as its provider calls it, as provider/model "
            "or as an alias. [default: the provider's]",
        ),
    ] = None
    api_base: Annotated[
        str | None,
        Meta(
            max_length=API_BASE_CHARS_MAX,
            description="Base URL of the provider's server, as the vendor documents it: those of OpenAI "
            "dialects end in /v1. [default: the provider's]",
        ),
    ] = None
    system_prompt: Annotated[
        Path | Literal["none"] | None,
        Meta(
            description="Text file with the instructions every model call begins with; none or an empty "
            "value for no such. [default: a built-in one]"
        ),
    ] = None
    project_instructions: Annotated[
        bool,
        Meta(
            description="Give models the AGENTS.md of the project: from the root of the repository down "
            "to the workdir."
        ),
    ] = True
    user_instructions: Annotated[
        bool,
        Meta(description="Give models the AGENTS.md that lies beside the default settings file."),
    ] = True
    allow_exec: Annotated[bool, Meta(description="Let models run programs (the bash tool).")] = (
        False
    )
    sandbox: Annotated[
        Literal["auto", "bubblewrap", "landlock", "none"],
        Meta(
            description="What holds the programs that models run: the first that works on this machine, "
            "that one only, or nothing; where nothing does, auto asks for every command."
        ),
    ] = "auto"
    network: Annotated[
        bool,
        Meta(
            description="Let programs in the sandbox reach the network; mode auto asks for them then."
        ),
    ] = False
    sandbox_paths: Annotated[
        tuple[Path, ...],
        Meta(
            max_length=64,
            description="File or folder that programs in the sandbox may read, such as that of a "
            "compiler. Repeatable.",
        ),
    ] = ()
    sandbox_write_paths: Annotated[
        tuple[Path, ...],
        Meta(
            max_length=64,
            description="Folder that programs in the sandbox may also write, such as a cache. "
            "Repeatable.",
        ),
    ] = ()
    sandbox_memory_mb: Annotated[
        int,
        Meta(
            ge=64,
            le=16_777_216,
            description="Mebibytes that one process in the sandbox may use.",
        ),
    ] = 8192
    sandbox_processes_max: Annotated[
        int,
        Meta(
            ge=16,
            le=1_000_000,
            description="Processes and threads of one command in the sandbox, at most.",
        ),
    ] = 1024
    permission_mode: Annotated[
        PermissionMode,
        Meta(
            description="Which tool calls of new sessions need a user's word where no rule decides: ask "
            "for all, auto for those that leave the workdir or a sandbox, yolo for none."
        ),
    ] = "auto"
    approval_timeout_ms: Annotated[
        int,
        Meta(
            ge=1000,
            le=86_400_000,
            description="Milliseconds after which a question to the user counts as denied.",
        ),
    ] = 900_000
    command_timeout: Annotated[
        float,
        Meta(gt=0, le=86_400, description="Seconds a prompt with wait:true is waited for."),
    ] = 600.0
    run_stale_ms: Annotated[
        int,
        Meta(
            ge=30_000,
            le=600_000,
            description="Milliseconds without a sign of life after which a run is ended.",
        ),
    ] = 120_000
    http: Annotated[
        str | None,
        Meta(
            max_length=4096,
            description="Serve HTTP and server-sent events as well: at HOST:PORT of this machine (port "
            "0: any that is free), or unix:PATH. Clients need the token of the file http-token in the "
            "state folder. [default: no HTTP]",
        ),
    ] = None
    http_remote: Annotated[
        bool, Meta(description="Let --http name an address that other machines can reach.")
    ] = False
    http_hosts: Annotated[
        tuple[Name, ...],
        Meta(
            max_length=64,
            description="Name that clients may call the HTTP server by in their Host header, beside "
            "those of this machine. Repeatable.",
        ),
    ] = ()
    http_origins: Annotated[
        tuple[Name, ...],
        Meta(
            max_length=64,
            description="Origin of web pages that may use the HTTP server, like https://app.example. "
            "Repeatable.",
        ),
    ] = ()
    extension: Annotated[
        tuple[Path, ...], Meta(max_length=64, description="Extension module to load. Repeatable.")
    ] = ()
    extensions: Annotated[
        tuple[str, ...],
        Meta(
            max_length=64, description="Installed extensions to load, by their entry points' names."
        ),
    ] = ()
    web_allow: Annotated[
        tuple[str, ...],
        Meta(
            max_length=256,
            description="Hosts and networks (such as 10.0.0.0/8) that web_fetch may reach although they "
            "are not public.",
        ),
    ] = ()
    hard_links: Annotated[
        bool,
        Meta(
            description="Let file tools open files that have several names (hard links), of which "
            "another may lie outside of the workdir."
        ),
    ] = False
    enable_demo_extension: Annotated[
        bool, Meta(description="Load the extension that shows what extensions can do.")
    ] = False
    line_bytes_max: Annotated[
        int,
        Meta(
            ge=1024,
            le=LONG_LINES_BYTES_MAX,
            description="Bytes of one command line on the socket, at most.",
        ),
    ] = LINE_BYTES_MAX
    log_file: Annotated[
        Path | None, Meta(description="Write the daemon's own log here. [default: standard error]")
    ] = None
    verbose: Annotated[bool, Meta(description="Log more.")] = False
    redact: Annotated[
        tuple[Regex, ...],
        Meta(
            max_length=64,
            description="Regular expression for what nousd bundle must not show, or its group "
            "'secret' for a part of it. Repeatable.",
        ),
    ] = ()
    model_calls_max: Annotated[
        int, Meta(ge=1, le=10_000, description="Model calls in one turn, at most.")
    ] = 50
    idle_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="Seconds a model stream may be silent; run_stale_ms ends its run as well.",
        ),
    ] = 300.0
    context_window: Annotated[
        int,
        Meta(ge=0, le=100_000_000, description="Tokens a model takes. 0: what the provider says."),
    ] = 0
    compact_at: Annotated[
        float,
        Meta(gt=0, le=1, description="Share of the context window that starts a compaction."),
    ] = 0.8
    keep_recent_tokens: Annotated[
        int, Meta(ge=0, le=100_000_000, description="Tokens that a compaction leaves as they are.")
    ] = 20_000
    delta_retention_days: Annotated[
        int,
        Meta(
            ge=0,
            le=36_500,
            description="Days that the deltas of finished messages are kept. 0: for ever.",
        ),
    ] = 7
    retry_attempts: Annotated[
        int, Meta(ge=1, le=20, description="Attempts at one model call, at most. 1: no retry.")
    ] = 3
    record: Annotated[
        Path | None,
        Meta(
            description="Keep the raw streams of model servers in this folder, for nousd record. They "
            "hold everything that models are told."
        ),
    ] = None
    providers: Mapping[str, ConfiguredProvider] = field(
        default_factory=lambda: {MOCK: ConfiguredProvider(name=MOCK, dialect=MOCK)}
    )
    models: Mapping[str, ModelTable] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    mcp: tuple[ConfiguredMcpServer, ...] = ()
    permissions: PermissionsTable = PermissionsTable()
    is_mode_insisted_on: Annotated[
        bool,
        Meta(description="Whether a flag or the environment named ``permission_mode``."),
    ] = False
    config_file: Annotated[
        Path | None, Meta(description="The file that settings were read from.")
    ] = None

    @property
    def events_socket(self) -> Path:
        """The socket that events are on."""
        return locations.events_socket(self.socket)

    @property
    def http_socket(self) -> Path | None:
        """The Unix socket that HTTP is on; None if it is on none."""
        if self.http is None or not self.http.startswith("unix:"):
            return None
        return Path(self.http.removeprefix("unix:"))

    @property
    def key_programs(self) -> tuple[Path, ...]:
        """The programs that print keys, as far as the settings say where they are."""
        commands = (provider.api_key_command for provider in self.providers.values())
        return tuple(Path(command[0]) for command in commands if command and "/" in command[0])


FILE_TABLES: Final = TABLES | {"mcp", PERMISSIONS}
"""The keys of the file that are no settings."""

_NOT_CHOSEN: Final = FILE_TABLES | {"config_file", "is_mode_insisted_on"}

_IN_FILE_ONLY: Final = frozenset({"extensions", "hard_links", "web_allow"})

ALL_SETTINGS: Final = {info.name: info for info in describe(Settings, without=_NOT_CHOSEN)}
"""name -> what it may be, for every setting that a user chooses."""

SETTINGS: Final = {name: info for name, info in ALL_SETTINGS.items() if name not in _IN_FILE_ONLY}
"""Those that flags and variables may name, too."""

FILE_SETTINGS: Final = {name: info for name, info in ALL_SETTINGS.items() if name in _IN_FILE_ONLY}
"""Those that only the settings file may name: what code is run is no matter of a variable that was left
over, or of a flag in somebody's script.
"""


DEFAULTS: Final = {
    item.name: item.default
    for item in msgspec.structs.fields(Settings)
    if item.name in SETTINGS and item.default is not msgspec.NODEFAULT
}
"""name -> default, for the settings whose default is the same everywhere."""


_FLAGS: Final = {"workspaces": "--workspace"}
"""Flags that name one of what the setting is a list of."""


def flag_of(name: str) -> str:
    """Return the command line flag of a setting."""
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def refusal_of(name: str) -> str:
    """Return the command line flag that says no to a setting that is true or false."""
    return f"--no-{flag_of(name).removeprefix('--')}"


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"NOUSD_{name.upper()}"
