"""The command lines of ``nousd check``, ``backup``, ``vacuum`` and ``doctor``."""

from __future__ import annotations

import io
import json
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

from nousd.admin import vacuum as vacuuming
from nousd.cli.nousd.state import STATE_COMMANDS, placeholders
from nousd.config.settings import Settings
from tests.admin.logs import write_recorded_log
from tests.cli.conftest import Nousd


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    write_recorded_log(folder / "nousd.db")
    return folder


def test_check_of_an_intact_log_lists_its_notes_with_exit_code_0(nousd: Nousd, state: Path) -> None:
    outcome = nousd("check", "--state-dir", state)
    assert (outcome.code, outcome.err) == (0, "")
    *notes, summary = outcome.out.splitlines()
    assert len(notes) == 1
    assert notes[0].startswith("note: run run-")
    assert summary.endswith("no damage")


def test_check_of_a_damaged_log_is_exit_code_1(nousd: Nousd, state: Path) -> None:
    (state / "nousd.db").write_bytes(b"x" * 1000)
    outcome = nousd("check", "--state-dir", state)
    assert outcome.code == 1
    assert "is no SQLite database" in outcome.out
    assert "--salvage OUT saves what can be read" in outcome.out


def test_check_prints_its_report_as_json(nousd: Nousd, state: Path) -> None:
    report = json.loads(nousd("check", "--json", "--state-dir", state).out)
    assert (report["errors"], report["events"], report["head"]) == (0, 228, 250)
    assert report["findings"][0].keys() == {"what", "where", "severity"}


def test_the_state_folder_may_come_from_the_environment_or_the_file(
    nousd: Nousd, state: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f'state_dir = "{state}"\nprovider = "openai"')
    assert nousd("check", "--config", file).code == 0
    monkeypatch.setenv("NOUSD_STATE_DIR", str(state))
    assert nousd("check").code == 0


def test_invalid_settings_and_arguments_are_exit_code_2(nousd: Nousd) -> None:
    assert nousd("check", "--config", "/nowhere").code == 2
    assert nousd("check", "--what").code == 2
    assert nousd("backup").code == 2


def test_a_salvage_without_loss_is_exit_code_0(nousd: Nousd, state: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = nousd("check", "--state-dir", state, "--salvage", out)
    assert outcome.code == 0
    assert outcome.out.endswith("nothing is known to be lost\n")
    assert nousd("check", "--state-dir", out).code == 0
    again = nousd("check", "--state-dir", state, "--salvage", out)
    assert (again.code, again.err) == (1, f"nousd: {out} exists; a salvage overwrites nothing\n")


def test_a_salvage_with_losses_is_exit_code_1(nousd: Nousd, state: Path, tmp_path: Path) -> None:
    content = bytearray((state / "nousd.db").read_bytes())
    content[39 * 4096 : 40 * 4096] = bytes(4096)
    (state / "nousd.db").write_bytes(content)
    outcome = nousd("check", "--state-dir", state, "--salvage", tmp_path / "out")
    assert outcome.code == 1
    assert "losses, see above" in outcome.out
    assert (tmp_path / "out" / "nousd.db").exists()


def test_a_backup_reports_its_events_and_size_and_overwrites_nothing(
    nousd: Nousd, state: Path, tmp_path: Path
) -> None:
    target = tmp_path / "copy.db"
    outcome = nousd("backup", "--state-dir", state, target)
    size = target.stat().st_size
    assert outcome == (0, f"{target}: 228 events up to evt-250, {size} bytes\n", "")
    again = nousd("backup", "--state-dir", state, target)
    assert (again.code, again.out) == (1, "")
    assert again.err.startswith(f"nousd: {target} exists")


def test_a_vacuum_reports_what_it_freed(
    nousd: Nousd, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vacuum(state_dir: Path) -> vacuuming.VacuumReport:
        assert state_dir == state
        return vacuuming.VacuumReport(
            bytes_before=3, bytes_after=2, deltas_joined=1, artifacts_dropped=4
        )

    monkeypatch.setattr(vacuuming, "vacuum", vacuum)
    outcome = nousd("vacuum", "--state-dir", state)
    assert outcome.out == (
        "1 deltas of ended runs joined, 4 unused artifacts dropped; 3 bytes before, 2 after\n"
    )
    assert json.loads(nousd("vacuum", "--json", "--state-dir", state).out)["deltas_joined"] == 1


@pytest.mark.slow
def test_a_doctor_has_a_line_for_each_check(nousd: Nousd, state: Path, tmp_path: Path) -> None:
    argv = ["doctor", "--state-dir", state, "--socket", tmp_path / "s", "--workdir", tmp_path]
    outcome = nousd(*argv)
    assert outcome.code == 0
    *told, summary = outcome.out.splitlines()
    lines = [line for line in told if line.startswith("  ")]
    assert len(told) - len(lines) == 3, "heads"
    assert all(line.split()[0] in {"ok", "warning", "skipped"} for line in lines)
    assert summary.startswith(f"{len(lines)} checks: 0 failed")
    report = json.loads(nousd(*argv, "--json").out)
    assert [check["name"] for check in report["checks"]][:2] == ["settings", "daemon"]


def test_a_doctor_that_finds_a_failure_is_exit_code_1(
    nousd: Nousd, state: Path, tmp_path: Path
) -> None:
    shutil.copy(__file__, state / "nousd.db")
    outcome = nousd("doctor", "--state-dir", state, "--socket", tmp_path / "s")
    assert outcome.code == 1
    assert any(line.startswith("  failed   database") for line in outcome.out.splitlines())
    assert nousd("doctor", "--workdir", "/nowhere").code == 1


def test_every_command_is_in_the_help(nousd: Nousd) -> None:
    words = nousd("--help").out.split()
    assert [name for name in (*STATE_COMMANDS, "doctor") if name not in words] == []


@pytest.mark.slow
def test_a_bundle_reports_its_contents_and_overwrites_only_with_force(
    nousd: Nousd, state: Path, tmp_path: Path
) -> None:
    target = tmp_path / "x.tar.gz"
    where = ["--state-dir", state, "--socket", tmp_path / "s", "--workdir", tmp_path]
    outcome = nousd("bundle", "--output", target, *where)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"{target}: 7 files, 2 things left out, 0 secrets redacted")
    again = nousd("bundle", "--output", target, *where)
    assert (again.code, again.err) == (1, f"nousd: {target} exists; --force overwrites it\n")
    session = "sess-0660c5f6f019259e45eb44"
    forced = nousd("bundle", session, "-o", target, "--force", "--json", *where)
    assert json.loads(forced.out)["path"] == str(target)
    unknown = nousd("bundle", "sess-x", "-o", target, "--force", *where)
    assert (unknown.code, unknown.err) == (1, "nousd: there is no session sess-x in the log\n")


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("--redact", "("),
        ("--artifact-bytes-max", "-1"),
        ("--events-bytes-max", "4294967297"),
        ("--log-bytes-max", "many"),
    ],
)
def test_a_bundle_with_invalid_options_is_exit_code_2(
    nousd: Nousd, state: Path, tmp_path: Path, argv: tuple[str, ...]
) -> None:
    output = ("--output", tmp_path / "x.tar.gz") if argv else ()
    assert nousd("bundle", *output, "--state-dir", state, *argv).code == 2
    assert not (tmp_path / "x.tar.gz").exists()


def size_of_events(path: Path) -> int:
    with tarfile.open(path) as tar:
        return tar.getmember("nousd-bundle/events.jsonl").size


@pytest.mark.slow
def test_bundle_limits_may_be_zero_or_the_maximum(
    nousd: Nousd, state: Path, tmp_path: Path
) -> None:
    where = ["--state-dir", state, "--socket", tmp_path / "s", "--workdir", tmp_path]
    for limit in ("0", "4294967296"):
        options = [f"--{name}-bytes-max={limit}" for name in ("events", "artifact", "artifacts")]
        assert nousd("bundle", "-o", tmp_path / limit, *options, *where).code == 0
    assert size_of_events(tmp_path / "0") == 0
    assert size_of_events(tmp_path / "4294967296") > 1000


def test_a_bundle_can_go_to_standard_output(
    nousd: Nousd, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", taken)
    outcome = nousd("bundle", "-o", "-", "--state-dir", state, "--socket", tmp_path / "s")
    assert outcome.err.startswith("standard output: 7 files")
    taken.buffer.seek(0)
    with tarfile.open(fileobj=taken.buffer) as tar:
        assert "nousd-bundle/manifest.json" in tar.getnames()


def test_a_fixture_has_placeholders_for_local_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    real, link = tmp_path.resolve() / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    settings = Settings(
        workdir=Path("/work"), workspaces=(link, Path("/usr")), state_dir=Path("/s")
    )
    assert placeholders(settings) == {
        str(real): "<WORKSPACE-1>",
        "/usr": "<WORKSPACE-2>",
        "/work": "<WORKDIR>",
        "/s": "<STATE>",
        "/home/me": "<HOME>",
    }


def test_doctor_and_record_accept_workspace_roots(
    nousd: Nousd, state: Path, tmp_path: Path
) -> None:
    where = ["--state-dir", state, "--socket", tmp_path / "s", "--workspace", tmp_path]
    checks = json.loads(nousd("doctor", "--json", *where).out)["checks"]
    [root] = [check for check in checks if check["name"] == "workspace 1"]
    assert root["found"] == f"{tmp_path} can be written to"
    options = ["--from", tmp_path, "--output", tmp_path / "made", "--workspace", tmp_path / "none"]
    outcome = nousd("record", "run-1", "--state-dir", state, *options)
    assert outcome.err.startswith("nousd: workspaces: ")
