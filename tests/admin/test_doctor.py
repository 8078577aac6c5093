"""``nousd.admin.doctor.doctor``: each check on a healthy and a broken installation, without changes."""

from __future__ import annotations

import http.server
import itertools
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

from nousd.admin.doctor import daemon as examine_daemon
from nousd.admin.doctor import models as examine_model
from nousd.admin.doctor import tools as examine_tools
from nousd.admin.doctor.doctor import DoctorReport, doctor
from nousd.admin.doctor.examination import Check
from nousd.config.providers import KEY_VARIABLES
from nousd.config.resolve import resolve
from nousd.providers.setup import auto
from nousd.runtime_paths.locks import lock_state_folder
from nousd.store.sqlite import store as sqlite
from nousd.tools.sandbox import detect, filter_listener, landlock
from tests.admin.conftest import check_unchanged
from tests.harness.fake_daemon import FakeDaemon, says

KEY = "sk-very-secret-key"
LOOPBACK = "127.0.0.1"


@pytest.fixture
def flags(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The flags of a healthy installation: a state folder, a socket, a workdir."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for variable in itertools.chain(*KEY_VARIABLES.values()):
        monkeypatch.delenv(variable, raising=False)
    for name in ("run", "work", "home"):
        (tmp_path / name).mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return {
        "state_dir": folder,
        "socket": tmp_path / "run" / "s",
        "workdir": tmp_path / "work",
        "sandbox": "none",  # trying one takes longer than everything else
    }


@pytest.fixture
def sandboxed(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags of an installation that has a sandbox."""
    return {name: value for name, value in flags.items() if name != "sandbox"}


def examine(flags: dict[str, Any], **environ: str) -> dict[str, Check]:
    report = doctor(flags, {**os.environ, **environ}, None)
    assert report.failed == sum(check.status == "failed" for check in report.checks)
    checks = {check.name: check for check in report.checks}
    assert len(checks) == len(report.checks)
    for check in report.checks:
        bad = check.status in ("failed", "warning")
        assert bool(check.advice) == bad, check
        assert "\n" not in str(check)
    return checks


def examine_to_report(flags: dict[str, Any]) -> DoctorReport:
    return doctor(flags, os.environ, None)


# --- settings ----------------------------------------------------------------------------------


def test_an_empty_state_folder_fails_no_check(sandboxed: dict[str, Any], folder: Path) -> None:
    with check_unchanged(folder):
        checks = examine(sandboxed)
    assert {name for name, check in checks.items() if check.status == "failed"} == set()
    assert {name for name, check in checks.items() if check.status == "skipped"} == {
        "database files",
        "socket files",
        "disk reserve",
        "daemon",
        "database",
        "http token",
        "http",
        "key mock",
        "toolchains",
    }
    assert list(folder.iterdir()) == []


def test_the_settings_check_names_the_settings_file(flags: dict[str, Any], tmp_path: Path) -> None:
    assert examine(flags)["settings"].found.startswith("come from no file")
    file = tmp_path / "c.toml"
    file.write_text("")
    report = doctor(flags, os.environ, file)
    assert report.checks[0].found.startswith(f"are read from {file}")


def test_invalid_settings_skip_all_other_checks(flags: dict[str, Any]) -> None:
    [check] = examine_to_report(flags | {"workdir": "/nowhere"}).checks
    assert (check.name, check.status) == ("settings", "failed")
    assert "/nowhere is not a directory" in check.found


def test_without_a_key_only_the_server_is_skipped(flags: dict[str, Any]) -> None:
    checks = examine(flags | {"provider": "openai"})
    names = ("settings", "key openai", "provider openai", "supervisor")
    assert [checks[name].status for name in names] == ["failed", "failed", "skipped", "ok"]
    assert checks["key openai"].advice == "set OPENAI_API_KEY"


# --- places ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["state folder", "runtime folder"])
@pytest.mark.parametrize(
    ("mode", "status", "found"),
    [(0o700, "ok", "(0700)"), (0o755, "warning", "look into"), (0o777, "failed", "write to")],
)
def test_folders_open_to_others_are_warnings_or_failures(
    flags: dict[str, Any], name: str, mode: int, status: str, found: str
) -> None:
    folder = flags["state_dir"] if name == "state folder" else flags["socket"].parent
    folder.chmod(mode)
    check = examine(flags)[name]
    assert (check.status, found in check.found) == (status, True)
    assert folder.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("name", ["state folder", "runtime folder"])
def test_a_folder_that_was_opened_since_it_was_used_is_one_that_a_start_mends(
    flags: dict[str, Any], name: str
) -> None:
    folder = flags["state_dir"] if name == "state folder" else flags["socket"].parent
    lock = "nousd.lock" if name == "state folder" else f"{flags['socket'].name}.lock"
    (folder / lock).touch()
    folder.chmod(0o777)
    check = examine(flags)[name]
    assert (check.status, "the next start takes that away" in check.found) == ("warning", True)
    assert folder.stat().st_mode & 0o777 == 0o777


def test_a_sticky_runtime_folder_is_accepted(flags: dict[str, Any]) -> None:
    flags["socket"].parent.chmod(0o1777)
    assert examine(flags)["runtime folder"].status == "ok"


def test_a_folder_of_another_user_is_a_failure(flags: dict[str, Any], as_root: None) -> None:
    os.chown(flags["state_dir"], 4711, 4711)
    check = examine(flags)["state folder"]
    assert (check.status, "belongs to uid 4711" in check.found) == ("failed", True)


def test_a_file_or_a_dangling_link_as_state_folder_is_a_failure(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert (
        "is not a directory"
        in examine(flags | {"state_dir": tmp_path / "file"})["state folder"].found
    )
    (tmp_path / "link").symlink_to("nowhere")
    check = examine(flags | {"state_dir": tmp_path / "link"})["state folder"]
    assert (check.status, "No such file" in check.found) == ("failed", True)


def test_a_symbolic_link_as_default_state_folder_is_a_failure(
    flags: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "nousd").symlink_to(flags["state_dir"])
    del flags["state_dir"]
    check = examine(flags)["state folder"]
    assert (check.status, "is a symbolic link" in check.found) == ("failed", True)


def test_a_read_only_workdir_is_a_warning(
    flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert examine(flags)["workdir"].status == "ok"
    access = os.access
    monkeypatch.setattr(os, "access", lambda p, m: p != flags["workdir"] and access(p, m))
    assert examine(flags)["workdir"].status == "warning"


def test_each_workspace_root_is_checked(
    flags: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    for root in roots:
        root.mkdir()
    access = os.access
    monkeypatch.setattr(os, "access", lambda p, m: p != roots[1] and access(p, m))
    checks = examine(flags | {"workspaces": tuple(map(str, roots))})
    assert checks["workspace 1"].status == "ok"
    second = checks["workspace 2"]
    assert (second.status, second.found.split()[0]) == ("warning", str(roots[1]))
    assert "--workspace" in (second.advice or "")


def test_database_files_open_to_others_are_a_warning(flags: dict[str, Any], log: Path) -> None:
    log.chmod(0o600)
    assert examine(flags)["database files"].status == "ok"
    log.chmod(0o644)
    check = examine(flags)["database files"]
    assert (check.status, check.advice) == ("warning", f"chmod 600 {log}")


def test_database_files_of_another_user_or_kind_are_reported(
    flags: dict[str, Any], log: Path, as_root: None
) -> None:
    log.with_name("nousd.db-wal").mkdir()
    assert "is something else" in examine(flags)["database files"].found
    log.with_name("nousd.db-wal").rmdir()
    os.chown(log, 4711, 4711)
    assert "belongs to uid 4711" in examine(flags)["database files"].found


def test_a_database_with_an_interrupted_migration_is_a_failure(
    flags: dict[str, Any], unfinished: Path
) -> None:
    check = examine(flags)["database"]
    assert (check.status, "the next start undoes it" in check.found) == ("failed", True)


def test_a_symbolic_link_as_database_is_a_warning(flags: dict[str, Any], log: Path) -> None:
    log.rename(log.with_name("elsewhere"))
    log.symlink_to("elsewhere")
    check = examine(flags)["database files"]
    assert (check.status, "is a symbolic link" in check.found) == ("warning", True)


@pytest.mark.parametrize(("free", "status"), [(2**40, "ok"), (2**29, "warning"), (2**20, "failed")])
def test_little_disk_space_is_a_warning_or_a_failure(
    flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch, free: int, status: str
) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(free))
    assert examine(flags)["disk space"].status == status


def test_a_spent_reserve_is_a_warning(flags: dict[str, Any]) -> None:
    reserve = flags["state_dir"] / f"nousd{sqlite.RESERVE_SUFFIX}"
    reserve.write_bytes(b"x" * 100_000)
    assert examine(flags)["disk reserve"].status == "ok"
    reserve.write_bytes(b"")
    assert examine(flags)["disk reserve"].status == "warning"


# --- the daemon --------------------------------------------------------------------------------


def test_a_daemon_that_answers_is_ok(flags: dict[str, Any]) -> None:
    with FakeDaemon(flags["socket"].parent) as daemon:
        flags["socket"] = daemon.socket_path
        for path in (daemon.socket_path, Path(f"{daemon.socket_path}.events")):
            path.chmod(0o600)
        checks = examine(flags)
    assert checks["daemon"].status == checks["socket files"].status == "ok"
    assert " within " in checks["daemon"].found
    assert checks["runs with"].status == "warning", "it says nothing of itself"


def test_a_stale_socket_is_a_warning(flags: dict[str, Any]) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(flags["socket"]))
    check = examine(flags)["daemon"]
    assert (check.status, "was left behind" in check.found) == ("warning", True)


@pytest.mark.slow
def test_a_daemon_without_a_valid_answer_is_a_failure(
    flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine_daemon, "ANSWER_SECONDS", 0.2)
    with FakeDaemon(flags["socket"].parent) as daemon:
        flags["socket"] = daemon.socket_path
        for answer in (b"", b"nonsense\n", None):
            daemon.otherwise = says(answer)
            assert examine(flags)["daemon"].status == "failed"


def test_the_holder_of_the_state_lock_is_named(flags: dict[str, Any]) -> None:
    assert examine(flags)["state lock"].found == "is free"
    with lock_state_folder(flags["state_dir"]):
        check = examine(flags)["state lock"]
    assert check.status == "warning"
    assert check.found.startswith(f"is held by pid {os.getpid()}, which does not listen on")


def test_an_unusable_lock_file_is_a_failure(flags: dict[str, Any]) -> None:
    (flags["state_dir"] / "nousd.lock").symlink_to("elsewhere")
    assert examine(flags)["state lock"].status == "failed"


def test_an_intact_log_is_ok_and_is_not_changed(flags: dict[str, Any], log: Path) -> None:
    with check_unchanged(log.parent):
        check = examine(flags)["database"]
    assert check.status == "ok"
    assert check.found.startswith("schema version ")


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda log: log.write_bytes(b"x" * 500), "no SQLite database"),
        (lambda log: _set_version(log, 99), "schema version 99"),
        (lambda log: _zero_page(log, 5), "is damaged"),
        (lambda log: os.truncate(log, 5000), "malformed"),
    ],
    ids=["foreign", "newer", "damaged", "cut"],
)
def test_a_damaged_or_foreign_log_is_a_failure(
    flags: dict[str, Any], log: Path, spoil: Callable[[Path], None], found: str
) -> None:
    spoil(log)
    with check_unchanged(log.parent):
        check = examine(flags)["database"]
    assert check.status == "failed"
    assert found in check.found
    assert "nousd check" in check.advice


def _set_version(log: Path, version: int) -> None:
    with apsw.Connection(str(log)) as connection:
        connection.pragma("user_version", version)
    connection.close()


def _zero_page(log: Path, page: int) -> None:
    content = bytearray(log.read_bytes())
    content[page * 4096 : (page + 1) * 4096] = bytes(4096)
    log.write_bytes(content)


def test_a_log_too_big_for_a_quick_check_is_a_warning(
    flags: dict[str, Any], log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine_daemon, "QUICK_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(examine_daemon, "_STEPS_BETWEEN_LOOKS", 1)
    check = examine(flags)["database"]
    assert (check.status, "too big" in check.found) == ("warning", True)


# --- the model server --------------------------------------------------------------------------


class Server(NamedTuple):
    api_base: str
    requests: list[dict[str, str]]
    answers: list[tuple[int, bytes]]


@pytest.fixture
def server() -> Iterator[Server]:
    """A model server on loopback with scripted answers, which records its requests."""
    requests: list[dict[str, str]] = []
    answers: list[tuple[int, bytes]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append({"path": self.path, "key": self.headers.get("Authorization", "")})
            status, body = answers.pop(0)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Location", "http://example.invalid/")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer((LOOPBACK, 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield Server(f"http://{LOOPBACK}:{listening.server_port}/v1", requests, answers)
        listening.shutdown()
        thread.join()


def listing(*models: str) -> bytes:
    return json.dumps({"object": "list", "data": [{"id": model} for model in models]}).encode()


def test_a_server_that_lists_the_model_is_ok(flags: dict[str, Any], server: Server) -> None:
    server.answers.append((200, listing("good", "other")))
    flags = flags | {"provider": "openai", "api_base": server.api_base, "model": "good"}
    checks = examine(flags, OPENAI_API_KEY=KEY)
    names = ("key openai", "provider openai", "model openai")
    assert [checks[name].status for name in names] == ["ok"] * 3
    assert server.requests == [{"path": "/v1/models", "key": f"Bearer {KEY}"}]


def test_an_unlisted_model_is_a_warning(flags: dict[str, Any], server: Server) -> None:
    server.answers.append((200, listing("other")))
    flags = flags | {"provider": "openai", "api_base": server.api_base, "model": "unknown"}
    checks = examine(flags, OPENAI_API_KEY="")
    assert (checks["key openai"].status, checks["provider openai"].status) == ("skipped", "ok")
    assert checks["model openai"].status == "warning"


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize(
    ("answer", "found", "advice"),
    [
        (
            (401, b'{"error":{"message":"bad key %b"}}' % KEY.encode()),
            "answers 401",
            "not accepted",
        ),
        ((403, b""), "answers 403", "may not"),
        ((404, b""), "answers 404", "/v1"),
        ((429, b""), "answers 429", "busy"),
        ((500, b""), "answers 500", "is up"),
        ((302, b""), "answers 302", "--api-base"),
        ((200, b"<html>"), "no list of models", "--api-base"),
    ],
)
def test_a_refusal_by_the_server_is_reported_without_the_key(
    flags: dict[str, Any], server: Server, answer: tuple[int, bytes], found: str, advice: str
) -> None:
    server.answers.append(answer)
    flags = flags | {"provider": "openai", "api_base": server.api_base}
    report = doctor(flags, {**os.environ, "OPENAI_API_KEY": KEY}, None)
    [check] = [check for check in report.checks if check.name == "provider openai"]
    assert (check.status, found in check.found, advice in check.advice) == ("failed", True, True)
    assert KEY not in "".join(map(str, report.checks))
    assert len(server.requests) == 1, "it must not be asked again, nor go where it is sent"


@pytest.mark.slow
def test_an_unreachable_or_silent_server_is_a_failure(
    flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine_model, "SERVER_SECONDS", 0.2)
    with socket.create_server((LOOPBACK, 0)) as silent:
        base = f"http://{LOOPBACK}:{silent.getsockname()[1]}"
        flags = flags | {"provider": "openai", "api_base": base}
        assert examine(flags, OPENAI_API_KEY=KEY)["provider openai"].status == "failed"
    check = examine(flags, OPENAI_API_KEY=KEY)["provider openai"]
    assert (check.status, "cannot be reached" in check.found) == ("failed", True)


def test_a_key_that_cannot_be_sent_is_not_shown(flags: dict[str, Any]) -> None:
    flags = flags | {"provider": "openai", "api_base": "http://127.0.0.1:1"}
    checks = examine(flags, OPENAI_API_KEY="sk-\x01secret")
    assert checks["provider openai"].status == "failed"
    assert "secret" not in "".join(map(str, checks.values()))


def test_every_provider_is_checked(flags: dict[str, Any], server: Server, tmp_path: Path) -> None:
    server.answers.extend([(200, listing("large"))] * 2)
    base = server.api_base
    file = tmp_path / "c.toml"
    file.write_text(
        f"""
        [providers.printed]
        dialect = "openai"
        api_base = "{base}"
        api_key_command = ["echo", "{KEY}"]
        model = "large"
        [providers.silent]
        dialect = "openai"
        api_base = "{base}"
        api_key_command = ["false"]
        [providers.remote]
        dialect = "gemini"
        [providers.main]
        dialect = "openai"
        api_base = "{base}"
        """
    )
    report = doctor(flags | {"provider": "main"}, {"PATH": os.environ["PATH"]}, file)
    checks = {check.name: check for check in report.checks}
    statuses = {
        f"{kind} {name}": checks[f"{kind} {name}"].status if f"{kind} {name}" in checks else None
        for name in ("main", "printed", "silent", "remote")
        for kind in ("key", "provider", "model")
    }
    assert statuses == {
        "key main": "skipped",
        "provider main": "ok",
        "model main": "warning",
        "key printed": "ok",
        "provider printed": "ok",
        "model printed": "ok",
        "key silent": "ok",
        "provider silent": "failed",
        "model silent": None,
        "key remote": "warning",
        "provider remote": "skipped",
        "model remote": None,
    }
    assert checks["provider silent"].found == "api_key_command failed with exit code 1"
    assert "[providers.silent]" in checks["provider silent"].advice
    assert checks["key remote"].advice == "set NOUSD_REMOTE_API_KEY"
    assert {request["key"] for request in server.requests} == {"", f"Bearer {KEY}"}
    assert KEY not in "".join(map(str, report.checks))


def test_the_provider_that_auto_selects_is_checked(
    flags: dict[str, Any], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(server.api_base.split(":")[2].split("/")[0])
    monkeypatch.setattr(auto, "LOCAL_SERVERS", (auto.LocalServer("ollama", port),))
    monkeypatch.setattr(auto, "SECONDS_MAX", 15)
    server.answers.extend([(200, listing("qwen"))] * 2)
    checks = examine(flags | {"provider": "auto"})
    assert checks["auto"].found == f"is ollama: {server.api_base} answers"
    assert [checks[name].status for name in ("auto", "provider ollama", "model ollama")] == (
        ["ok"] * 3
    )
    monkeypatch.setattr(auto, "LOCAL_SERVERS", ())
    checks = examine(flags | {"provider": "auto"})
    assert (checks["auto"].status, checks["provider mock"].status) == ("warning", "ok")
    assert "OPENAI_API_KEY" in checks["auto"].advice


# --- programs ----------------------------------------------------------------------------------


def bwrap(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a fake bubblewrap first on PATH."""
    folder.mkdir(exist_ok=True)
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


PRETENDING = 'while [ "$#" -gt 1 ]; do shift; done; exec "$1"'
FORBIDDEN = "echo No permissions to create new namespace >&2; exit 1"
UNHELD = (
    "bash is supervised, but not confined; mode auto asks for every command, and git is refused"
)


def without_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "why_not", lambda: "the kernel has no Landlock")


def test_a_sandbox_that_works_is_ok(
    sandboxed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bwrap(tmp_path / "bin", PRETENDING, monkeypatch)
    check = examine(sandboxed)["sandbox"]
    assert (check.status, check.found) == ("ok", "bubblewrap works")


def test_a_forbidden_sandbox_is_reported_with_the_setting_that_forbids_it(
    sandboxed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbidding = tmp_path / "user" / "max_user_namespaces"
    forbidding.parent.mkdir()
    forbidding.write_text("0\n")
    monkeypatch.setattr(detect, "_NAMESPACES", ((forbidding, "0", "100000"),))
    bwrap(tmp_path / "bin", FORBIDDEN, monkeypatch)
    without_landlock(monkeypatch)
    check = examine(sandboxed)["sandbox"]
    assert check.status == "warning"
    assert check.found == (
        f"{tmp_path}/bin/bwrap does not work: No permissions to create new namespace; "
        f"the kernel has no Landlock: {UNHELD}"
    )
    assert check.advice.startswith(
        "allow user namespaces: sysctl user.max_user_namespaces=100000; "
    )


def test_a_missing_sandbox_is_reported_with_its_effect_and_the_package_to_install(
    sandboxed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    which = shutil.which
    monkeypatch.setattr(
        shutil,
        "which",
        lambda name, **k: None if name == "bwrap" else which(name, **k),
    )
    without_landlock(monkeypatch)
    check = examine(sandboxed)["sandbox"]
    assert check.status == "warning"
    assert check.found.startswith("bubblewrap (bwrap) is not installed; the kernel has no")
    assert check.found.endswith(UNHELD)
    assert check.advice.startswith("apt install bubblewrap; ")


@pytest.mark.slow
@pytest.mark.skipif(landlock.why_not() is not None, reason=f"{landlock.why_not()}")
def test_landlock_is_reported_with_its_limits(
    sandboxed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bwrap(tmp_path / "bin", FORBIDDEN, monkeypatch)
    check = examine(sandboxed)["sandbox"]
    assert (check.status, check.found[:15]) == ("warning", "landlock works;")
    assert "no sockets" in check.found
    check = examine(sandboxed | {"sandbox": "landlock"})["sandbox"]
    assert (check.status, check.found[:15]) == ("ok", "landlock works:")
    assert "no sockets" in check.found


@pytest.mark.skipif(landlock.why_not() is not None, reason=f"{landlock.why_not()}")
def test_a_sandbox_in_which_no_mode_can_change_is_said_to_be_so(
    sandboxed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_listener, "why_not", lambda: "there is no listener")
    check = examine(sandboxed | {"sandbox": "landlock"})["sandbox"]
    assert check.status == "warning"
    assert check.found.endswith(
        "; nor can they commit, make files at the top of the workdir, and change modes and times:"
        " there is no listener"
    )


def test_a_disabled_sandbox_is_not_tried(
    flags: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bwrap(tmp_path / "bin", f"touch {tmp_path}/tried", monkeypatch)
    check = examine(flags | {"sandbox": "none"})["sandbox"]
    assert (check.status, check.found) == ("warning", f"the setting sandbox is none: {UNHELD}")
    assert not (tmp_path / "tried").exists()


def test_a_supervisor_that_cannot_start_a_process_is_a_failure(
    flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert examine(flags)["supervisor"].status == "ok"
    monkeypatch.setattr(examine_tools, "_true", lambda: "/nowhere/true")
    assert examine(flags)["supervisor"].status == "failed"


def test_rules_are_counted_and_an_invalid_one_is_a_failure(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    check = examine(flags)["rules"]
    assert (check.status, check.found) == (
        "ok",
        "0 deny, 0 ask, 0 allow; where none decides the mode auto",
    )
    file = tmp_path / "c.toml"
    file.write_text("[permissions]\ndeny = ['read(a)', 'write']\nallow = ['bash(ls *)']\n")
    found = examine(flags | {"permission_mode": "ask"}, NOUSD_CONFIG=str(file))["rules"].found
    assert found == "2 deny, 0 ask, 1 allow; where none decides the mode ask"
    file.write_text("[permissions]\nallow = ['bash(sudo *)']\n")
    check = examine(flags, NOUSD_CONFIG=str(file))["rules"]
    assert check.status == "failed"
    assert "sudo runs other programs" in check.found


# --- HTTP ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_http_token_open_to_others_is_a_failure(flags: dict[str, Any]) -> None:
    file = flags["state_dir"] / "http-token"
    assert examine(flags)["http token"].status == "skipped"
    assert not file.exists()
    file.write_text("a-token-of-the-user")
    file.chmod(0o600)
    check = examine(flags)["http token"]
    assert (check.status, "a-token" in check.found) == ("ok", False)
    file.chmod(0o644)
    check = examine(flags)["http token"]
    assert (check.status, "a-token" in check.found) == ("warning", False)
    assert "0644" in check.found
    assert "nousd http rotate-token replaces it" in check.advice
    assert file.read_text() == "a-token-of-the-user"


class _Healthy(http.server.BaseHTTPRequestHandler):
    mode = "nousd"

    def do_GET(self) -> None:
        body = json.dumps({"healthy": True, "mode": self.mode}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: Any) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "status"), [("nousd", "ok"), ("other", "failed")])
def test_another_server_at_the_http_address_is_a_failure(
    flags: dict[str, Any], mode: str, status: str
) -> None:
    assert examine(flags)["http"].status == "skipped"
    handler = type("Handler", (_Healthy,), {"mode": mode})
    with http.server.HTTPServer((LOOPBACK, 0), handler) as server:
        place = f"{LOOPBACK}:{server.server_port}"
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        check = examine({**flags, "http": place})["http"]
        thread.join()
    assert (check.status, place in check.found) == (status, True)
    check = examine({**flags, "http": place})["http"]
    assert (check.status, "no process" in check.found) == ("ok", True)
    path = flags["socket"].with_name("h")
    assert "no process" in examine({**flags, "http": f"unix:{path}"})["http"].found


# --- toolchains --------------------------------------------------------------------------------


@pytest.fixture
def cargo(flags: dict[str, Any], tmp_path: Path) -> Path:
    """A toolchain in the home."""
    program = tmp_path / "home" / ".cargo" / "bin" / "cargo"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


@pytest.mark.slow
def test_toolchains_under_the_home_that_are_absent_in_the_sandbox_are_found_with_their_setting(
    sandboxed: dict[str, Any], cargo: Path, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f'sandbox_paths = ["{tmp_path / "work"}"]\n')
    check = _toolchains(sandboxed, file)
    assert check.status == "warning"
    assert check.found == "commands in the sandbox do not see rust (~/.cargo/bin)"
    line = f'sandbox_paths = ["{tmp_path / "work"}", "~/.cargo/bin"]'
    assert check.advice == f"in {file}, before the first table: {line}"
    file.write_text(line)
    assert resolve({}, {}, file).settings.sandbox_paths == (tmp_path / "work", cargo.parent)
    check = _toolchains(sandboxed, file)
    assert (check.status, check.found) == ("ok", "commands in the sandbox see rust")


def test_a_visible_toolchain_is_named_beside_an_absent_one(
    sandboxed: dict[str, Any], cargo: Path, tmp_path: Path
) -> None:
    (tmp_path / "home" / ".deno" / "bin").mkdir(parents=True)
    file = tmp_path / "c.toml"
    file.write_text('sandbox_paths = ["~/.cargo"]')
    check = _toolchains(sandboxed, file)
    assert check.status == "warning"
    assert check.found == (
        "commands in the sandbox see rust; commands in the sandbox do not see deno (~/.deno/bin)"
    )
    assert check.advice.endswith('sandbox_paths = ["~/.cargo", "~/.deno/bin"]')


def test_a_variable_that_overrides_the_proposed_line_is_named(
    sandboxed: dict[str, Any], cargo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOUSD_SANDBOX_PATHS", str(sandboxed["workdir"]))
    assert examine(sandboxed)["toolchains"].advice.endswith("; and unset NOUSD_SANDBOX_PATHS")


def test_without_a_sandbox_no_toolchain_is_absent(
    sandboxed: dict[str, Any], cargo: Path, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text('sandbox = "none"')
    assert _toolchains(sandboxed, file).status == "skipped"


def test_a_folder_with_a_program_that_prints_keys_is_not_proposed(
    sandboxed: dict[str, Any], cargo: Path, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f'[providers.own]\ndialect = "openai"\napi_key_command = ["{cargo}"]\n')
    assert _toolchains(sandboxed, file).status == "skipped"


def test_a_proposal_is_no_longer_than_the_setting_may_be(
    sandboxed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "home" / str(number) / "bin" for number in range(70)]
    for folder in folders:
        folder.mkdir(parents=True)
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, folders), os.environ["PATH"]]))
    advice = examine(sandboxed)["toolchains"].advice
    assert "~/63/bin" in advice
    assert "~/64/bin" not in advice
    assert advice.endswith("(6 paths more than the setting can hold are left out)")


def _toolchains(flags: dict[str, Any], file: Path) -> Check:
    [check] = [each for each in doctor(flags, os.environ, file).checks if each.name == "toolchains"]
    return check
