"""The command line of ``nousd``: flags and settings, exit codes, service units."""

from __future__ import annotations

import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from nousd import __version__
from nousd.cli.nousd import units
from nousd.config.settings import SETTINGS, Settings, flag_of
from nousd.daemon import serve as serving
from nousd.errors import AnotherDaemonRuns, ConfigError, NousdError, StoreTooNew
from tests.cli.conftest import Nousd


@pytest.fixture
def served_settings(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings of every daemon that ``serve`` would have run; each ends with exit code 7."""
    served_settings: list[Settings] = []

    def serve(settings: Settings, _door: object) -> int:
        served_settings.append(settings)
        return 7

    monkeypatch.setattr(serving, "serve", serve)
    return served_settings


def test_serve_passes_flags_as_settings_and_returns_the_daemons_exit_code(
    nousd: Nousd, served_settings: list[Settings], tmp_path: Path
) -> None:
    argv = ["--socket", "/s", "--allow-exec", "-v", "--command-timeout", "5"]
    extensions = ["--extension", str(tmp_path), "--extension", __file__]
    assert nousd("serve", *argv, *extensions).code == 7
    [settings] = served_settings
    assert (settings.socket, settings.allow_exec, settings.verbose) == (Path("/s"), True, True)
    assert settings.command_timeout_seconds == 5.0
    assert settings.extension == (tmp_path, Path(__file__))


def test_every_setting_has_a_flag(nousd: Nousd) -> None:
    words = nousd("serve", "--help").out.split()
    assert [name for name in SETTINGS if flag_of(name) not in words] == []


def test_print_config_shows_values_and_origins_and_starts_no_daemon(
    nousd: Nousd, served_settings: list[Settings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text("retry_attempts = 1")
    monkeypatch.setenv("NOUSD_COMPACT_AT", "0.5")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    argv = ["--config", str(file), "--no-allow-exec", "--print-config"]
    outcome = nousd("serve", *argv)
    assert outcome.code == 0
    assert {
        f"retry_attempts = 1  (file {file})",
        "compact_at = 0.5  (environment NOUSD_COMPACT_AT)",
        "allow_exec = false  (flag --allow-exec)",
        "model_calls_max = 50  (default)",
        "providers.openai.api_key = set  (environment OPENAI_API_KEY)",
        f"config_file = {file}  (flag --config)",
    } <= set(outcome.out.splitlines())
    assert "very" not in outcome.out
    assert served_settings == []


def test_print_config_shows_a_missing_key(nousd: Nousd, served_settings: list[Settings]) -> None:
    assert nousd("serve", "--provider", "gemini").code == 2
    outcome = nousd("serve", "--provider", "gemini", "--print-config")
    assert outcome.code == 0
    assert "providers.gemini.api_key = not set" in outcome.out.splitlines()
    assert served_settings == []


def test_an_invalid_setting_is_one_line_and_exit_code_2(
    nousd: Nousd, served_settings: list[Settings]
) -> None:
    outcome = nousd("serve", "--line-bytes-max", "10")
    assert outcome.code == 2
    assert outcome.err == (
        "nousd: line_bytes_max must be a whole number at least 1024 and at most 268435456, "
        "not '10' (flag --line-bytes-max)\n"
    )
    assert served_settings == []


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigError("socket: in use"), 2), (StoreTooNew("too new"), 1)]
)
def test_a_start_up_error_is_one_line_with_its_exit_code(
    nousd: Nousd, monkeypatch: pytest.MonkeyPatch, error: NousdError, code: int
) -> None:
    def serve(_settings: Settings, _door: object) -> int:
        raise error

    monkeypatch.setattr(serving, "serve", serve)
    assert nousd("serve") == (code, "", f"nousd: {error}\n")


def test_a_second_daemon_is_told_how_to_see_and_end_the_first(
    nousd: Nousd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(_settings: Settings, _door: object) -> int:
        raise AnotherDaemonRuns("another daemon already uses the socket /s")

    monkeypatch.setattr(serving, "serve", serve)
    hint = "nousctl status shows it, nousctl stop ends it"
    told = f"nousd: another daemon already uses the socket /s; {hint}\n"
    assert nousd("serve") == (2, "", told)


def test_version_prints_the_package_version(nousd: Nousd) -> None:
    assert nousd("version") == (0, f"{__version__}\n", "")


def _unit(text: str) -> ConfigParser:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.read_string(text)
    return parser


def test_the_service_unit_starts_this_installation_with_type_notify(nousd: Nousd) -> None:
    service = _unit(nousd("service", "print").out)["Service"]
    assert service["Type"] == "notify"
    program = service["ExecStart"].removesuffix(" serve").strip('"')
    assert Path(program) == Path(sys.executable).with_name("nousd")


def test_the_socket_unit_listens_on_the_default_sockets(nousd: Nousd) -> None:
    out = nousd("service", "print", "--socket").out
    assert "ListenStream=%t/nousd/nousd.sock\nListenStream=%t/nousd/nousd.sock.events\n" in out
    assert _unit(out)["Socket"]["SocketMode"] == "0600"


def test_paths_in_a_unit_are_quoted_for_systemd(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", f'{tmp_path}/my $dir/100%/"python3"')
    assert units._program() == (f'"{tmp_path}/my $$dir/100%%/\\"python3\\"" -m nousd')


# --- guesses -------------------------------------------------------------------------------------


def test_config_prints_what_serve_would_use(nousd: Nousd, served_settings: list[Settings]) -> None:
    printed = nousd("config", "--model", "m")
    assert printed == nousd("serve", "--model", "m", "--print-config")
    assert "model = m  (flag --model)" in printed.out.splitlines()
    assert served_settings == []


def test_version_is_an_option_too(nousd: Nousd) -> None:
    assert nousd("--version") == nousd("version") == (0, f"{__version__}\n", "")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("status", "'status' is a verb of the client: nousctl status"),
        ("ls", "'ls' is a verb of the client: nousctl ls"),
        ("start", "it is: nousd serve"),
        ("srve", "did you mean: nousd serve"),
        ("qqqq", "list them with: nousd --help"),
    ],
)
def test_an_unknown_command_is_refused_with_what_is_meant(
    nousd: Nousd, typed: str, hint: str
) -> None:
    outcome = nousd(typed)
    assert outcome.code == 2
    assert hint in " ".join(outcome.err.split())
