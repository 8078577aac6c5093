"""The choice of a sandbox, and the reasons against the others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nousd.tools.sandbox import detect, landlock, seccomp
from nousd.tools.sandbox.detect import Detector
from nousd.tools.sandbox.visible_paths import SandboxChoices

WORKS = 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'


def install(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a fake bubblewrap in PATH, and return the file in which it records its runs."""
    folder.mkdir()
    runs = folder / "runs"
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\necho run >> {runs}\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return runs


def without_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "why_not", lambda: "the kernel has no Landlock")


def reasons(detector: Detector) -> list[tuple[str, str]]:
    return [(finding.name, finding.reason) for finding in detector.findings()]


def test_the_first_sandbox_that_works_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "bin", WORKS, monkeypatch)
    detector = Detector("auto", SandboxChoices())
    found = detector()
    assert found is not None
    assert found.name == "bubblewrap"
    assert reasons(detector) == [("bubblewrap", "")]


def test_a_sandbox_is_tried_once_when_it_is_first_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = install(tmp_path / "bin", WORKS, monkeypatch)
    detector = Detector("auto", SandboxChoices())
    assert not runs.exists()
    assert detector() is detector()
    assert runs.read_text() == "run\n"


def test_a_sandbox_that_does_not_work_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        tmp_path / "bin", "echo No permissions to create new namespace >&2; exit 1", monkeypatch
    )
    without_landlock(monkeypatch)
    detector = Detector("auto", SandboxChoices())
    assert detector() is None
    assert reasons(detector) == [
        (
            "bubblewrap",
            f"{tmp_path}/bin/bwrap does not work: No permissions to create new namespace",
        ),
        ("landlock", "the kernel has no Landlock"),
    ]
    assert all(finding.advice for finding in detector.findings())


def test_a_sandbox_that_hangs_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "bin", "exec sleep 1000", monkeypatch)
    without_landlock(monkeypatch)
    monkeypatch.setattr(detect, "TRIAL_SECONDS", 0.2)
    detector = Detector("auto", SandboxChoices())
    assert detector() is None
    assert "did not end within 0.2 seconds" in reasons(detector)[0][1]


def test_a_long_reason_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "bin", "head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1", monkeypatch)
    without_landlock(monkeypatch)
    detector = Detector("auto", SandboxChoices())
    assert detector() is None
    assert len(reasons(detector)[0][1]) < 400


def test_only_the_configured_sandbox_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = install(tmp_path / "bin", WORKS, monkeypatch)
    none = Detector("none", SandboxChoices())
    assert none() is None
    assert none.findings() == ()
    without_landlock(monkeypatch)
    other = Detector("landlock", SandboxChoices())
    assert other() is None
    assert reasons(other) == [("landlock", "the kernel has no Landlock")]
    assert not runs.exists()


def test_a_sandbox_that_is_not_installed_is_reported_with_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    without_landlock(monkeypatch)
    first, second = Detector("auto", SandboxChoices()).findings()
    assert (first.reason, first.advice) == (
        "bubblewrap (bwrap) is not installed",
        "apt install bubblewrap",
    )
    assert second.advice == "use Linux 6.12 or later"


def test_a_machine_without_a_system_call_filter_has_no_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = install(tmp_path / "bin", WORKS, monkeypatch)
    monkeypatch.setattr(seccomp, "why_not", lambda: "there are no numbers")
    detector = Detector("auto", SandboxChoices())
    assert detector() is None
    assert reasons(detector) == [
        ("bubblewrap", "there are no numbers"),
        ("landlock", "there are no numbers"),
    ]
    assert not runs.exists()


@pytest.mark.parametrize(
    ("abi", "reason"),
    [
        (-1, "the kernel has no Landlock, or it is switched off"),
        (5, "the kernel's Landlock has ABI 5, and 6 (Linux 6.12) is needed"),
        (6, None),
        (9, None),
    ],
)
def test_landlock_is_usable_from_abi_6(
    abi: int, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seccomp, "why_not", lambda: None)
    monkeypatch.setattr(landlock, "_abi", lambda: abi)
    assert landlock.why_not() == reason
