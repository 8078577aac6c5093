"""The settings of the daemon and their bounds.

``Settings`` is the only list. Each field is a setting. Its name is the key in the settings file; with
dashes it is the flag, and in capitals after ``NOUSD_`` the environment variable. Its annotation holds
the bounds and the help text. A number whose name ends with ``_seconds`` or ``_days`` is a duration
(``durations``). ``resolve`` defines the order of precedence of the sources.

A few fields are not settings: the tables of the file (``FILE_TABLES``); ``config_file``, the path of
that file; ``warnings`` for the daemon's log; and ``is_mode_insisted_on``, which lets a flag or variable
for ``permission_mode`` win over the project's file, which in turn wins over the user's file.
"""

# No ``from __future__ import annotations``: each annotation would be compiled again at every start.
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, field

from nousd.config.mcp_file import ConfiguredMcpServer
from nousd.config.models_file import API_BASE_CHARS_MAX, AUTO, TABLES, ModelTable
from nousd.config.permissions_file import PERMISSIONS, PermissionsTable
from nousd.config.providers import MOCK, ConfiguredProvider
from nousd.config.runtimes_file import ConfiguredRuntime
from nousd.config.values import Name, Regex, describe
from nousd.runtime_paths import locations
from nousd.wire.limits import (
    ANSWER_BYTES_MAX,
    LINE_BYTES_MAX,
    LONG_LINES_BYTES_MAX,
    NAME_CHARS_MAX,
    RUN_ANSWER_BYTES_MAX,
    UNSTREAMED_ANSWER_BYTES_MAX,
)
from nousd.wire.objects.entries import PermissionMode

SANDBOX_PATHS_MAX: Final = 64
"""Maximum number of paths in the setting ``sandbox_paths``."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one daemon. Paths are absolute."""

    socket: Annotated[
        Path,
        Meta(
            description="Unix socket for commands. The event socket is the same path with '.events'. "
            "[default: nousd.sock in the user's runtime directory]"
        ),
    ] = field(default_factory=locations.default_socket)
    state_dir: Annotated[
        Path,
        Meta(
            description="Directory of the log; one daemon each. [default: in the user's state directory]"
        ),
    ] = field(default_factory=locations.default_state_dir)
    workdir: Annotated[
        Path,
        Meta(description="Workspace: the directory that tools work in. [default: the current one]"),
    ] = field(default_factory=Path.cwd)
    workspaces: Annotated[
        tuple[Path, ...],
        Meta(
            max_length=64,
            description="Another directory that clients over HTTP may use as a workspace, with all "
            "below it. Repeatable.",
        ),
    ] = ()
    provider: Annotated[
        str,
        Meta(
            max_length=NAME_CHARS_MAX,
            description="Model provider: openai, openai-responses, anthropic, gemini, one of the "
            "settings file, auto (the first that is configured, else a server on this machine), "
            "or mock, which answers without a network.",
        ),
    ] = AUTO
    model: Annotated[
        str | None,
        Meta(
            max_length=NAME_CHARS_MAX,
            description="Default model of sessions: the provider's name for it, provider/model or an "
            "alias. [default: the provider's]",
        ),
    ] = None
    api_base: Annotated[
        str | None,
        Meta(
            max_length=API_BASE_CHARS_MAX,
            description="Base URL of the provider's API, as the vendor documents it; with OpenAI "
            "dialects it ends in /v1. [default: the provider's]",
        ),
    ] = None
    system_prompt: Annotated[
        Path | Literal["none"] | None,
        Meta(
            description="Text file with the system prompt; none or an empty value for no system prompt. "
            "[default: a built-in one]"
        ),
    ] = None
    project_instructions: Annotated[
        bool,
        Meta(
            description="Add the project's AGENTS.md files to the system prompt, from the root of the "
            "repository down to the workspace."
        ),
    ] = True
    user_instructions: Annotated[
        bool,
        Meta(
            description="Add the AGENTS.md beside the default settings file to the system prompt."
        ),
    ] = True
    allow_exec: Annotated[
        bool, Meta(description="Enable the bash tool, with which models run programs.")
    ] = False
    sandbox: Annotated[
        Literal["auto", "bubblewrap", "landlock", "none"],
        Meta(
            description="Sandbox of the programs that models run. auto: the first one that works on "
            "this machine; without one, every command needs approval."
        ),
    ] = "auto"
    network: Annotated[
        bool,
        Meta(
            description="Let programs in the sandbox use the network; in mode auto they then "
            "need approval."
        ),
    ] = False
    sandbox_paths: Annotated[
        tuple[Path, ...],
        Meta(
            max_length=SANDBOX_PATHS_MAX,
            description="File or directory that programs in the sandbox may also read, such as a "
            "compiler's; one named bin is in their PATH. nousd doctor proposes toolchains. Repeatable.",
        ),
    ] = ()
    sandbox_write_paths: Annotated[
        tuple[Path, ...],
        Meta(
            max_length=64,
            description="Directory that programs in the sandbox may also write, such as a cache. "
            "Repeatable.",
        ),
    ] = ()
    sandbox_memory_mb: Annotated[
        int,
        Meta(
            ge=64,
            le=16_777_216,
            description="Memory limit of each process in the sandbox, in MiB.",
        ),
    ] = 8192
    sandbox_processes_max: Annotated[
        int,
        Meta(
            ge=16,
            le=1_000_000,
            description="Maximum number of processes and threads of a command in the sandbox.",
        ),
    ] = 1024
    permission_mode: Annotated[
        PermissionMode,
        Meta(
            description="Tool calls of new sessions that need approval where no rule decides. ask: all; "
            "auto: those outside of the workspace or of a sandbox; yolo: none."
        ),
    ] = "auto"
    approval_timeout_seconds: Annotated[
        float,
        Meta(
            ge=1,
            le=86_400,
            description="Seconds to wait for the user; a tool call without an answer is denied.",
        ),
    ] = 900.0
    command_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0, le=86_400, description="Seconds that a prompt with wait:true waits for its run."
        ),
    ] = 600.0
    run_stale_seconds: Annotated[
        float,
        Meta(
            ge=30,
            le=600,
            description="Seconds without progress after which a run is ended.",
        ),
    ] = 120.0
    http: Annotated[
        str | None,
        Meta(
            max_length=4096,
            description="Also serve HTTP and server-sent events, at HOST:PORT (port 0: any free one) or "
            "unix:PATH. Clients authenticate with the token in the file http-token of the state "
            "directory. [default: no HTTP]",
        ),
    ] = None
    http_remote: Annotated[
        bool, Meta(description="Allow an --http address that other machines can reach.")
    ] = False
    http_hosts: Annotated[
        tuple[Name, ...],
        Meta(
            max_length=64,
            description="Host name that HTTP requests may have in their Host header, besides those of "
            "this machine. Repeatable.",
        ),
    ] = ()
    http_origins: Annotated[
        tuple[Name, ...],
        Meta(
            max_length=64,
            description="Origin of web pages that may call the HTTP API, such as https://app.example. "
            "Repeatable.",
        ),
    ] = ()
    http_starts_per_minute: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="How often one HTTP client may start a run, a compaction or a tool call over "
            "MCP in a minute; 0 for any number.",
        ),
    ] = 600
    extension: Annotated[
        tuple[Path, ...], Meta(max_length=64, description="Extension module to load. Repeatable.")
    ] = ()
    extensions: Annotated[
        tuple[str, ...],
        Meta(
            max_length=64,
            description="Installed extensions to load, by the names of their entry points.",
        ),
    ] = ()
    web_allow: Annotated[
        tuple[str, ...],
        Meta(
            max_length=256,
            description="Hosts and networks that are not public (such as 10.0.0.0/8) and that web_fetch "
            "may reach.",
        ),
    ] = ()
    hard_links: Annotated[
        bool,
        Meta(
            description="Let file tools open files with several names (hard links), one of which may "
            "lie outside of the workspace."
        ),
    ] = False
    plain_chat: Annotated[
        bool,
        Meta(description="Let nousctl chat draw nothing again that was shown, for screen readers."),
    ] = False
    enable_demo_extension: Annotated[bool, Meta(description="Load the demo extension.")] = False
    line_bytes_max: Annotated[
        int,
        Meta(
            ge=1024,
            le=LONG_LINES_BYTES_MAX,
            description="Maximum length of a line on the command socket, in bytes.",
        ),
    ] = LINE_BYTES_MAX
    log_file: Annotated[
        Path | None,
        Meta(description="File for the daemon's diagnostic log. [default: standard error]"),
    ] = None
    verbose: Annotated[bool, Meta(description="Log debug messages too.")] = False
    redact: Annotated[
        tuple[Regex, ...],
        Meta(
            max_length=64,
            description="Regular expression for text that nousd bundle redacts; with a group named "
            "'secret', only that group. Repeatable.",
        ),
    ] = ()
    model_calls_max: Annotated[
        int, Meta(ge=1, le=10_000, description="Maximum number of model calls in one turn.")
    ] = 50
    answer_bytes_max: Annotated[
        int,
        Meta(
            ge=1024,
            le=UNSTREAMED_ANSWER_BYTES_MAX,
            description="Maximum text, reasoning and tool call arguments of one model call, in bytes. "
            "A run whose model says more ends with the error answer_too_long.",
        ),
    ] = ANSWER_BYTES_MAX
    run_answer_bytes_max: Annotated[
        int,
        Meta(
            ge=1024,
            le=1_073_741_824,
            description="The same for all model calls of one run together.",
        ),
    ] = RUN_ANSWER_BYTES_MAX
    idle_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="Seconds without data after which a model stream is given up; run_stale_seconds "
            "also applies.",
        ),
    ] = 300.0
    context_window: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000_000,
            description="Context window in tokens. 0: as the provider reports.",
        ),
    ] = 0
    compact_at: Annotated[
        float,
        Meta(
            gt=0, le=1, description="Share of the context window at which a session is compacted."
        ),
    ] = 0.8
    keep_recent_tokens: Annotated[
        int,
        Meta(ge=0, le=100_000_000, description="Number of recent tokens that a compaction keeps."),
    ] = 20_000
    delta_retention_days: Annotated[
        int,
        Meta(
            ge=0,
            le=36_500,
            description="Days that deltas of finished messages are kept. 0: forever.",
        ),
    ] = 7
    retry_attempts: Annotated[
        int,
        Meta(ge=1, le=20, description="Maximum number of attempts at a model call. 1: no retry."),
    ] = 3
    record: Annotated[
        Path | None,
        Meta(
            description="Directory to record the raw streams of model servers in, for nousd record. "
            "They contain everything that is sent to models."
        ),
    ] = None
    providers: Mapping[str, ConfiguredProvider] = field(
        default_factory=lambda: {MOCK: ConfiguredProvider(name=MOCK, dialect=MOCK)}
    )
    models: Mapping[str, ModelTable] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    mcp: tuple[ConfiguredMcpServer, ...] = ()
    runtimes: tuple[ConfiguredRuntime, ...] = ()
    permissions: PermissionsTable = PermissionsTable()
    is_mode_insisted_on: Annotated[
        bool,
        Meta(description="Whether a flag or the environment named ``permission_mode``."),
    ] = False
    warnings: Annotated[
        tuple[str, ...], Meta(description="What was given and is not used as it is.")
    ] = ()
    config_file: Annotated[
        Path | None, Meta(description="The file that settings were read from.")
    ] = None

    @property
    def events_socket(self) -> Path:
        """The event socket."""
        return locations.events_socket(self.socket)

    @property
    def http_socket(self) -> Path | None:
        """The Unix socket that HTTP is served on; None for a TCP address or no HTTP."""
        if self.http is None or not self.http.startswith("unix:"):
            return None
        return Path(self.http.removeprefix("unix:"))

    @property
    def key_programs(self) -> tuple[Path, ...]:
        """The programs that print API keys, where the settings give their path."""
        commands = (provider.api_key_command for provider in self.providers.values())
        return tuple(Path(command[0]) for command in commands if command and "/" in command[0])


FILE_TABLES: Final = TABLES | {"mcp", "runtimes", PERMISSIONS}
"""The keys of the file that are not settings."""

_NOT_SETTABLE: Final = FILE_TABLES | {"config_file", "is_mode_insisted_on", "warnings"}

_IN_FILE_ONLY: Final = frozenset({"extensions", "hard_links", "plain_chat", "web_allow"})

ALL_SETTINGS: Final = {info.name: info for info in describe(Settings, excluded=_NOT_SETTABLE)}
"""name -> its type, bounds and help, for every setting that a user can choose."""

SETTINGS: Final = {name: info for name, info in ALL_SETTINGS.items() if name not in _IN_FILE_ONLY}
"""The settings that flags and environment variables can set too."""

FILE_SETTINGS: Final = {name: info for name, info in ALL_SETTINGS.items() if name in _IN_FILE_ONLY}
"""The settings that only the file can set: those that decide which code runs or which hosts and files
tools reach, which a forgotten variable or a flag in a script must not change, and those of clients.
"""


DEFAULTS: Final = {
    item.name: item.default
    for item in msgspec.structs.fields(Settings)
    if item.name in SETTINGS and item.default is not msgspec.NODEFAULT
}
"""name -> default, for the settings whose default is the same on every machine."""


_FLAGS: Final = {"workspaces": "--workspace", "command_timeout_seconds": "--command-timeout"}
"""The flags that are not spelled like their setting: one for an item of a list, and one of v1."""


def flag_of(name: str) -> str:
    """Return the command line flag of a setting."""
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def refusal_of(name: str) -> str:
    """Return the command line flag that turns a boolean setting off."""
    return f"--no-{flag_of(name).removeprefix('--')}"


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"NOUSD_{name.upper()}"
