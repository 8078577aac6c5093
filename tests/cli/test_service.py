"""``nousd service``: the unit of the user's systemd, and what systemd is asked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nousd.runtime_paths.locks import lock_socket
from tests.cli.conftest import Nousd

SYSTEMCTL = """#!/bin/sh
echo "$*" >> "$SAID"
case "$2" in
is-active) echo "${ACTIVE:-active}";;
is-enabled) echo enabled;;
show) echo "${MAIN_PID:-0}";;
esac
if [ "$2" = "$FAILS" ]; then echo "no bus here" >&2; exit 1; fi
"""


class Machine:
    """A user's configuration and a systemd that only records what it is asked for."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.unit = folder / "systemd/user/nousd.service"
        self._said = folder / "said"
        self._said.touch()
        program = folder / "bin/systemctl"
        program.parent.mkdir()
        program.write_text(SYSTEMCTL)
        program.chmod(0o755)
        patch.setenv("SAID", str(self._said))
        patch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")

    def asked(self) -> list[str]:
        """Return what systemd was asked to do since the last time."""
        lines = self._said.read_text().splitlines()
        self._said.write_text("")
        asked = [line.removeprefix("--user ") for line in lines]
        return [each for each in asked if not each.startswith(("show ", "is-"))]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_install_writes_the_unit_starts_it_and_can_be_repeated(
    machine: Machine, nousd: Nousd
) -> None:
    for _ in range(2):
        done = nousd("service", "install")
        assert (done.code, done.err) == (0, "")
        assert str(machine.unit) in done.out
        assert machine.asked() == ["daemon-reload", "enable nousd.service", "restart nousd.service"]
    assert nousd("service", "print").out in machine.unit.read_text()


def test_uninstall_stops_the_service_and_removes_the_unit(machine: Machine, nousd: Nousd) -> None:
    nousd("service", "install")
    machine.asked()
    assert nousd("service", "uninstall").code == 0
    assert machine.asked() == ["disable --now nousd.service", "daemon-reload"]
    assert not machine.unit.exists()
    again = nousd("service", "uninstall")
    assert (again.code, machine.asked()) == (0, [])
    assert "not installed" in again.out


def test_uninstall_names_a_socket_unit_that_stays(machine: Machine, nousd: Nousd) -> None:
    nousd("service", "install")
    machine.unit.with_suffix(".socket").touch()
    assert "systemctl --user disable --now nousd.socket" in nousd("service", "uninstall").out


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_a_unit_that_the_user_wrote_or_changed_is_left_alone(
    verb: str, machine: Machine, nousd: Nousd
) -> None:
    nousd("service", "install")
    machine.asked()
    own = machine.unit.read_text() + "Environment=ANTHROPIC_API_KEY=secret\n"
    machine.unit.write_text(own)
    done = nousd("service", verb)
    assert (done.code, machine.asked()) == (2, [])
    assert "was changed" in done.err
    assert machine.unit.read_text() == own


def test_a_unit_of_another_installation_is_renewed(machine: Machine, nousd: Nousd) -> None:
    nousd("service", "install")
    ours = machine.unit.read_text()
    lines = [
        'ExecStart="/old/nousd" serve' if line.startswith("ExecStart=") else line
        for line in ours.splitlines()
    ]
    machine.unit.write_text("\n".join(lines) + "\n")
    assert "renews it" in nousd("service", "status").out
    assert nousd("service", "install").code == 0
    assert machine.unit.read_text() == ours


def test_status_says_whether_it_is_installed_and_runs(
    machine: Machine, nousd: Nousd, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = nousd("service", "status")
    assert missing.code == 1
    assert "nousd service install" in missing.out
    nousd("service", "install")
    runs = nousd("service", "status")
    assert runs.code == 0
    assert runs.out.splitlines()[1:] == ["at login: enabled", "now: active"]
    facts = json.loads(nousd("service", "status", "--json").out)
    assert (facts["installed"], facts["current"], facts["now"]) == (True, True, "active")
    monkeypatch.setenv("ACTIVE", "failed")
    assert nousd("service", "status").code == 1


def test_a_systemd_that_refuses_is_quoted_with_the_way_without_it(
    machine: Machine, nousd: Nousd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "enable")
    done = nousd("service", "install")
    assert done.code == 1
    assert "no bus here" in done.err
    assert "nousd serve" in done.err
    monkeypatch.setenv("PATH", "/nowhere")
    assert "there is no systemctl here" in nousd("service", "status").err


def test_another_daemon_has_to_end_before_the_service_is_installed(
    machine: Machine, nousd: Nousd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "nousd").mkdir()
    with lock_socket(tmp_path / "nousd/nousd.sock"):
        done = nousd("service", "install")
        assert (done.code, machine.asked(), machine.unit.exists()) == (1, [], False)
        assert f"pid {os.getpid()}" in done.err
        assert "nousctl stop" in done.err
        monkeypatch.setenv("MAIN_PID", str(os.getpid()))
        assert nousd("service", "install").code == 0, "it is the service's own"
        assert "not the service's" not in nousd("service", "status").out
        monkeypatch.setenv("MAIN_PID", "1")
        assert f"not the service's: pid {os.getpid()}" in nousd("service", "status").out


def test_a_service_that_failed_too_often_starts_again_or_names_its_log(
    machine: Machine, nousd: Nousd, monkeypatch: pytest.MonkeyPatch
) -> None:
    nousd("service", "install")
    machine.asked()
    monkeypatch.setenv("ACTIVE", "failed")
    assert nousd("service", "install").code == 0
    assert machine.asked()[-2:] == ["reset-failed nousd.service", "restart nousd.service"]
    monkeypatch.setenv("FAILS", "restart")
    assert "journalctl --user -u nousd.service -n 20" in nousd("service", "install").err


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_no_fault_in_the_units(nousd: Nousd, tmp_path: Path) -> None:
    for name, options in (("nousd.service", ()), ("nousd.socket", ("--socket",))):
        (tmp_path / name).write_text(nousd("service", "print", *options).out)
    broken = (tmp_path / "nousd.service").read_text().replace("Type=notify", "Type=notfy")
    (tmp_path / "broken.service").write_text(broken)
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)

    def faults(*names: str) -> str:
        done = subprocess.run(
            ["systemd-analyze", "--user", "verify", *(tmp_path / name for name in names)],
            env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stderr

    assert faults("nousd.service", "nousd.socket") == ""
    assert "notfy" in faults("broken.service")
