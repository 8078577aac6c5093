from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nousd.config.config_file import CONFIG_FILE_BYTES_MAX
from nousd.config.report import report
from nousd.config.resolve import resolve
from nousd.config.settings import ALL_SETTINGS, FILE_SETTINGS, SETTINGS, flag_of, variable_of
from nousd.errors import ConfigError
from nousd.runtime_paths import locations
from tests.config.conftest import write

# --- precedence ----------------------------------------------------------------------------------


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(home: Path) -> None:
    file = write(home / "config.toml", 'model = "of the file"')
    by_file = {"NOUSD_CONFIG": str(file)}
    by_environment = {**by_file, "NOUSD_MODEL": "of the environment"}
    decided = [
        resolve({}, {}),
        resolve({}, by_file),
        resolve({}, by_environment),
        resolve({"model": "of the flag"}, by_environment),
    ]
    assert [(item.settings.model, item.origins["model"]) for item in decided] == [
        (None, "default"),
        ("of the file", f"file {file}"),
        ("of the environment", "environment NOUSD_MODEL"),
        ("of the flag", "flag --model"),
    ]


def test_each_setting_is_resolved_separately() -> None:
    settings = resolve({"provider": "mock"}, {"NOUSD_COMMAND_TIMEOUT_SECONDS": "2.5"}).settings
    assert (settings.command_timeout_seconds, settings.retry_attempts) == (2.5, 3)


@pytest.mark.parametrize("flags", [{"model": None, "extension": []}, {}])
def test_an_unset_flag_does_not_hide_a_variable(flags: dict[str, Any], home: Path) -> None:
    write(home / "one.py", "")
    environ = {"NOUSD_MODEL": "m", "NOUSD_EXTENSION": "one.py"}
    settings = resolve(flags, environ).settings
    assert (settings.model, settings.extension) == ("m", (home / "one.py",))


def test_an_empty_variable_counts_as_not_set() -> None:
    assert resolve({}, {"NOUSD_MODEL": "", "NOUSD_CONFIG": ""}).settings.model is None


def test_a_flag_can_disable_a_setting_of_the_file(home: Path) -> None:
    file = write(home / "c.toml", "allow_exec = true")
    assert resolve({}, {}, file).settings.allow_exec is True
    assert resolve({"allow_exec": False}, {}, file).settings.allow_exec is False


def test_the_file_is_found_by_default_by_variable_and_by_flag(home: Path) -> None:
    usual = write(locations.default_config_file(), 'model = "usual"')
    other = write(home / "other.toml", 'model = "other"')
    third = write(home / "third.toml", 'model = "third"')
    environ = {"NOUSD_CONFIG": str(other)}
    for config_path, variables, path, origin in (
        (None, {}, usual, "default"),
        (None, environ, other, "environment NOUSD_CONFIG"),
        (third, environ, third, "flag --config"),
    ):
        resolved = resolve({}, variables, config_path)
        assert resolved.settings.model == path.stem.replace("config", "usual")
        assert resolved.settings.config_file == path
        assert resolved.origins["config_file"] == origin


def test_relative_paths_in_the_file_start_at_its_folder_and_others_at_the_current_one(
    home: Path,
) -> None:
    file = write(home / "etc" / "c.toml", 'socket = "a.sock"\nstate_dir = "~/state"')
    settings = resolve({}, {}, file).settings
    assert settings.socket == home / "etc" / "a.sock"
    assert settings.events_socket == home / "etc" / "a.sock.events"
    assert settings.state_dir == home / "state"
    assert resolve({"socket": "a.sock"}, {}, file).settings.socket == home / "a.sock"


def test_a_misspelt_variable_of_ours_is_a_warning_with_the_right_name() -> None:
    environ = {"NOUSD_COMMAND_TIMEOUT": "5", "NOUSD_SESSION": "x", "NOUSD_WORK_API_KEY": "k"}
    (warning,) = resolve({}, environ).settings.warnings
    meant = "NOUSD_COMMAND_TIMEOUT_SECONDS"
    assert warning == f"environment NOUSD_COMMAND_TIMEOUT is ignored: the setting is {meant}"


def test_an_error_about_a_duration_shows_only_forms_that_are_accepted() -> None:
    with pytest.raises(ConfigError, match=r"such as 7d \(a plain number is in days\)"):
        resolve({"delta_retention_days": "500ms"}, {})
    with pytest.raises(ConfigError, match=r"such as 500ms, 30s, 5m, 1h or 7d"):
        resolve({"command_timeout_seconds": "x"}, {})


def test_the_variable_of_another_program_is_used_if_ours_is_not_set() -> None:
    foreign = {"TANDEM_RUN_STALE_MS": "40000"}
    resolved = resolve({}, foreign)
    assert resolved.settings.run_stale_seconds == 40
    assert resolved.origins["run_stale_seconds"] == "environment TANDEM_RUN_STALE_MS"
    ours = {**foreign, "NOUSD_RUN_STALE_SECONDS": "50"}
    assert resolve({}, ours).settings.run_stale_seconds == 50
    assert resolve({}, ours).settings.warnings == resolved.settings.warnings == ()


@pytest.mark.parametrize(
    ("value", "seconds", "words"),
    [
        ("1000", 30, "TANDEM_RUN_STALE_MS is '1000': 30000 is used, the nearest allowed value"),
        ("0", 30, "TANDEM_RUN_STALE_MS is '0': 30000 is used, the nearest allowed value"),
        ("999999", 600, "TANDEM_RUN_STALE_MS is '999999': 600000 is used, the nearest allowed"),
        ("9" * 5000, 600, "600000 is used"),
        ("abc", 120, "TANDEM_RUN_STALE_MS is 'abc', no number of milliseconds: it is ignored"),
        ("-1", 30, "30000 is used"),
        ("11m", 600, "600000 is used"),
        ("nan", 120, "it is ignored"),
    ],
)
def test_an_unusable_variable_of_another_program_is_a_warning_and_no_reason_not_to_start(
    value: str, seconds: float, words: str
) -> None:
    settings = resolve({}, {"TANDEM_RUN_STALE_MS": value}).settings
    assert settings.run_stale_seconds == seconds
    (warning,) = settings.warnings
    assert words in warning
    assert len(warning) < 300
    ours = {"TANDEM_RUN_STALE_MS": value, "NOUSD_RUN_STALE_SECONDS": "50"}
    assert resolve({}, ours).settings.warnings == ()
    by_flag = resolve({"run_stale_seconds": "60"}, {"TANDEM_RUN_STALE_MS": value}).settings
    assert (by_flag.run_stale_seconds, by_flag.warnings) == (60, ())


# --- every setting in every source ---------------------------------------------------------------

WRITTEN: dict[str, tuple[str, str, Any]] = {
    "socket": ("/s", '"/s"', Path("/s")),
    "state_dir": ("/d", '"/d"', Path("/d")),
    "workdir": ("/", '"/"', Path("/")),
    "workspaces": ("/:/usr", '["/", "/usr"]', (Path("/"), Path("/usr"))),
    "provider": ("mock", '"mock"', "mock"),
    "model": ("m", '"m"', "m"),
    "api_base": ("http://h/v1", '"http://h/v1"', "http://h/v1"),
    "system_prompt": (__file__, f'"{__file__}"', Path(__file__)),
    "project_instructions": ("no", "false", False),
    "user_instructions": ("no", "false", False),
    "allow_exec": ("yes", "true", True),
    "permission_mode": ("yolo", '"yolo"', "yolo"),
    "approval_timeout_seconds": ("1.5", "1.5", 1.5),
    "sandbox": ("landlock", '"landlock"', "landlock"),
    "network": ("1", "true", True),
    "sandbox_paths": (f"{__file__}:/", f'["{__file__}", "/"]', (Path(__file__), Path("/"))),
    "sandbox_write_paths": ("/", '["/"]', (Path("/"),)),
    "sandbox_memory_mb": ("64", "64", 64),
    "sandbox_processes_max": ("16", "16", 16),
    "command_timeout_seconds": ("1.5", "1.5", 1.5),
    "run_stale_seconds": ("30", "30", 30.0),
    "delta_retention_days": ("0", "0", 0),
    "extension": (f"{__file__}:/", f'["{__file__}", "/"]', (Path(__file__), Path("/"))),
    "enable_demo_extension": ("1", "true", True),
    "line_bytes_max": ("2048", "2048", 2048),
    "log_file": ("/log", '"/log"', Path("/log")),
    "verbose": ("true", "true", True),
    "model_calls_max": ("7", "7", 7),
    "answer_bytes_max": ("2048", "2048", 2048),
    "run_answer_bytes_max": ("4096", "4096", 4096),
    "idle_timeout_seconds": ("3", "3", 3.0),
    "context_window": ("1000", "1000", 1000),
    "compact_at": ("0.5", "0.5", 0.5),
    "keep_recent_tokens": ("0", "0", 0),
    "retry_attempts": ("1", "1", 1),
    "record": ("/r", '"/r"', Path("/r")),
    "http": ("unix:/h", '"unix:/h"', "unix:/h"),
    "http_remote": ("yes", "true", True),
    "http_hosts": ("a.example,b", '["a.example", "b"]', ("a.example", "b")),
    "http_starts_per_minute": ("7", "7", 7),
    "http_origins": ("https://a", '["https://a"]', ("https://a",)),
    "redact": ("a+:b", '["a+:b"]', ("a+:b",)),
}
"""setting -> (text of the flag or variable, TOML, value)"""


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_can_be_given_by_flag_variable_and_file(name: str, home: Path) -> None:
    text, toml, value = WRITTEN[name]
    file = write(home / "c.toml", f"{name} = {toml}")
    # A base belongs to a provider that is named.
    named = {"provider": "openai"} if name == "api_base" else {}
    for resolved in (
        resolve({**named, name: text}, {}),
        resolve(named, {variable_of(name): text}),
        resolve(named, {}, file),
    ):
        assert getattr(resolved.settings, name) == value
        assert resolved.origins[name] != "default"


def test_installed_extensions_are_chosen_only_in_the_file(home: Path) -> None:
    file = write(home / "c.toml", 'extensions = ["guard", "notes"]')
    resolved = resolve({}, {"NOUSD_EXTENSIONS": "other"}, file)
    assert resolved.settings.extensions == ("guard", "notes")
    assert resolved.origins["extensions"] == f"file {file}"
    assert resolve({}, {"NOUSD_EXTENSIONS": "other"}).settings.extensions == ()
    assert flag_of("extensions") not in {flag_of(name) for name in SETTINGS}
    with pytest.raises(ConfigError, match="extensions must be a list of texts of at most 64"):
        resolve({}, {}, write(home / "d.toml", 'extensions = "guard"'))


def test_the_system_prompt_can_be_disabled(home: Path) -> None:
    for off in ('"none"', '""'):
        file = write(home / "c.toml", f"system_prompt = {off}")
        assert resolve({}, {}, file).settings.system_prompt == "none"
    assert resolve({"system_prompt": "none"}, {}).settings.system_prompt == "none"
    assert resolve({}, {"NOUSD_SYSTEM_PROMPT": "none"}).settings.system_prompt == "none"
    with pytest.raises(ConfigError, match=r"system_prompt: .* is not a file"):
        resolve({"system_prompt": "./none"}, {})


def test_names_of_flags_and_variables_derive_from_the_setting() -> None:
    assert flag_of("workspaces") == "--workspace"
    assert (flag_of("state_dir"), variable_of("state_dir")) == ("--state-dir", "NOUSD_STATE_DIR")


# --- invalid values ------------------------------------------------------------------------------

DURATIONS = [
    ("command_timeout_seconds", "45", 45.0),
    ("command_timeout_seconds", "0.5", 0.5),
    ("command_timeout_seconds", "500ms", 0.5),
    ("command_timeout_seconds", "30s", 30.0),
    ("command_timeout_seconds", "1.5m", 90.0),
    ("command_timeout_seconds", "1h30m", 5400.0),
    ("command_timeout_seconds", "1d", 86_400.0),
    ("approval_timeout_seconds", "5m", 300.0),
    ("run_stale_seconds", "2m", 120.0),
    ("idle_timeout_seconds", " 10s ", 10.0),
    ("delta_retention_days", "14", 14),
    ("delta_retention_days", "48h", 2),
    ("delta_retention_days", "0d", 0),
]


def test_every_setting_that_is_a_duration_is_named_with_its_unit() -> None:
    of_durations = {name for name, info in ALL_SETTINGS.items() if info.unit}
    assert of_durations == {name for name, _, _ in DURATIONS}


@pytest.mark.parametrize(("name", "text", "value"), DURATIONS)
def test_a_duration_is_accepted_with_and_without_a_unit_and_a_plain_number_is_in_the_unit_of_the_setting(
    name: str, text: str, value: float, tmp_path: Path
) -> None:
    file = write(tmp_path / "c.toml", f'{name} = "{text}"')
    for resolved in (
        resolve({name: text}, {}),
        resolve({}, {variable_of(name): text}),
        resolve({}, {}, file),
    ):
        read = getattr(resolved.settings, name)
        assert read == value
        assert type(read) is type(value)


def test_the_variable_of_another_program_may_have_a_unit_too() -> None:
    assert resolve({}, {"TANDEM_RUN_STALE_MS": "2m"}).settings.run_stale_seconds == 120


REFUSED = [
    (
        "provider",
        "opnai",
        (
            "provider must be anthropic or auto or gemini or mock or openai or openai-responses, "
            "not 'opnai'; the nearest is openai"
        ),
    ),
    ("model", "  ", "model must be a text of at most 256 characters, not '  '"),
    ("model", "m" * 257, "model must be a text of at most 256"),
    (
        "command_timeout_seconds",
        "soon",
        (
            "command_timeout_seconds must be a duration more than 0 and at most 86400 seconds, such as "
            "500ms, 30s, 5m, 1h or 7d (a plain number is in seconds), not 'soon'"
        ),
    ),
    *(
        ("command_timeout_seconds", text, "a duration more than 0 and at most 86400 seconds")
        for text in ("0", "0ms", "2d", "5x", "m", "1h 5", "-5s", "nan", "inf", " ")
    ),
    *(
        ("delta_retention_days", text, "must be a duration at least 0 and at most 36500 days")
        for text in ("-1", "36501", "36501d", "12h", "1.5", "inf")
    ),
    ("compact_at", "1.5", "compact_at must be a number more than 0 and at most 1"),
    ("line_bytes_max", "1023", "line_bytes_max must be a whole number at least 1024"),
    ("line_bytes_max", "1e6", "line_bytes_max must be a whole number"),
    ("model_calls_max", "0", "must be a whole number at least 1 and at most 10000, not '0'"),
    ("answer_bytes_max", "0", "must be a whole number at least 1024 and at most 16777216, not '0'"),
    ("run_answer_bytes_max", "2G", "run_answer_bytes_max must be a whole number at least 1024"),
    ("keep_recent_tokens", "-1", "keep_recent_tokens must be a whole number at least 0 and"),
    ("context_window", "9" * 5000, "context_window must be a whole number"),
    ("allow_exec", "maybe", "allow_exec must be true or false, not 'maybe'"),
    ("workdir", "/none", "workdir: /none is not a directory"),
    ("workspaces", f"/:{__file__}", f"workspaces: {__file__} is not a directory"),
    ("system_prompt", "/none", "system_prompt: /none is not a file"),
    ("extension", "/none", "extension: /none does not exist"),
    ("sandbox", "docker", "sandbox must be auto or bubblewrap or landlock or none, not 'docker'"),
    ("sandbox_paths", "/none", "sandbox_paths: /none does not exist"),
    ("sandbox_write_paths", __file__, f"sandbox_write_paths: {__file__} is not a directory"),
    ("sandbox_memory_mb", "63", "sandbox_memory_mb must be a whole number at least 64 and"),
    ("sandbox_processes_max", "15", "sandbox_processes_max must be a whole number at least 16"),
    ("log_file", "/none/log", "log_file: /none is not a directory"),
    ("redact", "(", "redact must be a list of regular expressions of at most 64 items"),
    ("api_base", "ftp://h", "api_base: ftp://h is not an http or https URL"),
    ("socket", "a\0b", "socket must be a path"),
    ("socket", "~nobody-of-that-name/s", "socket must be a path"),
]


@pytest.mark.parametrize(
    ("name", "text", "message"), REFUSED, ids=[f"{row[0]}-{row[1][:12]!r}" for row in REFUSED]
)
def test_an_invalid_value_is_refused_with_its_reason_and_origin(
    name: str, text: str, message: str
) -> None:
    for flags, environ, origin in (
        ({name: text}, {}, f"flag {flag_of(name)}"),
        ({}, {variable_of(name): text}, f"environment {variable_of(name)}"),
    ):
        with pytest.raises(ConfigError) as caught:
            resolve(flags, environ)
        message_shown = str(caught.value)
        assert message in message_shown
        assert message_shown.endswith(f"({origin})")
        assert "\n" not in message_shown
        assert len(message_shown) < 300


@pytest.mark.parametrize("name", ["workdir", "workspaces"])
def test_a_folder_whose_path_is_not_utf_8_is_refused(name: str, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    with pytest.raises(ConfigError, match="the path of the folder is not UTF-8"):
        resolve({name: str(folder)}, {})


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("sokcet = 1", "unknown setting 'sokcet' in file {file}; the nearest is socket"),
        ("state-dir = 1", "unknown setting 'state-dir' in file {file}; the nearest is state_dir"),
        (
            "api_key = 'k'",
            "api_key belongs to a provider: put it into a table [providers.NAME] of file {file}",
        ),
        ("model = 1", "model must be a text of at most 256 characters, not '1' (file {file})"),
        ("retry_attempts = true", "retry_attempts must be a whole number"),
        ("retry_attempts = 1.0", "retry_attempts must be a whole number"),
        ("command_timeout_seconds = true", "command_timeout_seconds must be a duration"),
        ("allow_exec = 1", "allow_exec must be true or false"),
        ("extension = 1", "extension must be a list of paths of at most 64 items"),
        ("extension = [1]", "extension must be a list of paths of at most 64 items"),
        ("provider = ['mock']", "provider must be a text of at most 256"),
        ("socket = ''", "socket must be a path, not '' (file {file})"),
        ("model = ", "config: file {file} is not TOML"),
    ],
)
def test_an_invalid_settings_file_is_refused(home: Path, toml: str, message: str) -> None:
    file = write(home / "c.toml", toml)
    with pytest.raises(ConfigError) as caught:
        resolve({}, {}, file)
    assert message.format(file=file) in str(caught.value)


def test_a_named_settings_file_must_exist_and_be_a_file(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*/none \(flag --config\)"):
        resolve({}, {}, home / "none")
    with pytest.raises(ConfigError, match=r"there is no file .*\(environment NOUSD_CONFIG\)"):
        resolve({}, {"NOUSD_CONFIG": "none"})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        resolve({}, {}, home)


def test_a_binary_or_oversized_settings_file_is_refused(home: Path) -> None:
    (home / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        resolve({}, {}, home / "binary")
    write(home / "long", " " * (CONFIG_FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match=f"is longer than {CONFIG_FILE_BYTES_MAX} bytes"):
        resolve({}, {}, home / "long")
    with pytest.raises(ConfigError, match="is longer than"):
        resolve({}, {}, Path("/dev/zero"))


def test_a_deleted_current_folder_is_an_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = home / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match="the current folder cannot be used"):
        resolve({}, {})


# --- secrets ---------------------------------------------------------------------------------------


def test_a_url_with_a_password_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({"api_base": "https://me:hush@h/v1"}, {})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://me:hush@h", "https://h/v1?key=hush", "https://h/v1#hush"])
def test_no_possibly_secret_part_of_a_url_is_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({"api_base": url}, {})
    assert "hush" not in str(caught.value)


def test_the_report_has_a_line_for_every_setting() -> None:
    flags = {"extension": ["/", __file__], "verbose": True, "provider": "mock"}
    lines = list(map(str, report(resolve(flags, {}))))
    names = [line.split(" = ")[0] for line in lines]
    assert names == [*SETTINGS, *FILE_SETTINGS, "config_file", "providers.mock.api_key"]
    assert f"extension = /, {__file__}  (flag --extension)" in lines
    assert "verbose = true  (flag --verbose)" in lines
    assert "model = not set  (default)" in lines
    assert "providers.mock.api_key = not set" in lines


def test_the_report_has_a_form_for_programs() -> None:
    lines = [json.loads(line.as_json()) for line in report(resolve({"provider": "mock"}, {}))]
    assert {"name": "provider", "value": "mock", "origin": "flag --provider"} in lines


def test_the_report_lists_providers_models_and_aliases(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        """
        [providers.work]
        dialect = "openai"
        api_base = "http://localhost:1/v1"
        model = "large"
        [providers.anthropic]
        model = "small"
        [models."work/large"]
        context_window = 1000
        attachments = ["image/png", "text/*"]
        [aliases]
        big = "work/large"
        """
    )
    lines = list(map(str, report(resolve({"provider": "work", "model": "larger"}, {}, file))))
    assert lines[len(SETTINGS) + len(FILE_SETTINGS) + 1 :] == [
        f"providers.work.dialect = openai  (file {file})",
        f"providers.work.api_base = http://localhost:1/v1  (file {file})",
        "providers.work.model = larger  (flag --model)",
        "providers.work.api_key = not set",
        f"providers.anthropic.model = small  (file {file})",
        "providers.anthropic.api_key = not set",
        f'models."work/large".context_window = 1000  (file {file})',
        f'models."work/large".attachments = image/png, text/*  (file {file})',
        f"aliases.big = work/large  (file {file})",
    ]


# --- default paths -------------------------------------------------------------------------------


def test_the_default_socket_is_in_the_runtime_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert resolve({}, {}).settings.socket == tmp_path / "nousd" / "nousd.sock"


@pytest.mark.parametrize("folder", ["", "/none", __file__])
def test_without_a_runtime_folder_the_default_socket_is_in_the_state_folder(
    folder: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    monkeypatch.setattr(os, "getuid", lambda: 99_999_999)  # a user without /run/user/UID
    expected = home / ".local" / "state" / "nousd" / "run" / "nousd.sock"
    if os.uname().sysname == "Linux":
        assert locations.default_socket() == expected
    assert locations.default_socket().is_relative_to(home)


@pytest.mark.parametrize(
    ("flags", "environ", "is_insisted_on"),
    [
        ({}, {}, False),
        ({"permission_mode": "ask"}, {}, True),
        ({}, {"NOUSD_PERMISSION_MODE": "ask"}, True),
        ({}, {"NOUSD_PERMISSION_MODE": ""}, False),
    ],
)
def test_a_permission_mode_is_binding_if_set_by_flag_or_variable(
    flags: dict[str, str], environ: dict[str, str], is_insisted_on: bool, tmp_path: Path
) -> None:
    path = write(tmp_path / "config.toml", 'permission_mode = "auto"')
    assert resolve(flags, environ, path).settings.is_mode_insisted_on is is_insisted_on


@pytest.mark.parametrize("text", ["x = 1" + "0" * 5000, "x = " + "[" * 100_000])
def test_a_file_that_is_not_toml_is_refused(text: str, tmp_path: Path) -> None:
    path = write(tmp_path / "config.toml", text)
    with pytest.raises(ConfigError, match="is not TOML"):
        resolve({}, {}, path)
