"""``nousctl runtime login|logout|doctor`` run the program's own words, with the files of a namespace."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Nousctl
from tests.harness.fake_daemon import FakeDaemon, ok

WRITES = "import os, pathlib; pathlib.Path(os.environ['HOME'], 'key').write_text('x')"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def tells(daemon: FakeDaemon, **auth: Any) -> None:
    status = {"runtime": "it", "namespace": "user:a", "auth_model": "both"}
    facts = {"instructions": "do this", **auth}
    daemon.on["get_auth_status"] = ok("auth_status", {**status, "auth": facts})


def asked(daemon: FakeDaemon) -> list[object]:
    return [each["payload"] for each in daemon.heard if each["type"] == "get_auth_status"]


@pytest.mark.parametrize("verb", ["login", "logout"])
def test_the_words_run_in_a_home_that_is_private(
    nousctl: Nousctl, daemon: FakeDaemon, tmp_path: Path, verb: str
) -> None:
    home = tmp_path / "runtimes" / "user-a" / "it"
    words = ["env", f"HOME={home}", sys.executable, "-S", "-c", WRITES]
    tells(daemon, home=str(home), **{verb: words})
    assert nousctl("runtime", verb, "it", "--namespace", "user:a").code == 0
    assert asked(daemon) == [{"runtime": "it", "namespace": "user:a"}]
    assert [mode(path) for path in (home.parent, home, home / "key")] == [0o700, 0o700, 0o600]


def test_the_users_own_files_keep_the_users_umask(
    nousctl: Nousctl, daemon: FakeDaemon, tmp_path: Path
) -> None:
    tells(daemon, login=["env", f"HOME={tmp_path}", sys.executable, "-S", "-c", WRITES])
    umask = os.umask(0o027)
    try:
        assert nousctl("runtime", "login", "it").code == 0
    finally:
        os.umask(umask)
    assert asked(daemon) == [{"runtime": "it"}]
    assert mode(tmp_path / "key") == 0o640


def test_what_has_no_words_says_what_to_do(nousctl: Nousctl, daemon: FakeDaemon) -> None:
    tells(daemon)
    outcome = nousctl("runtime", "login", "it")
    assert (outcome.code, outcome.err) == (1, "it: do this\n")


def test_the_code_of_the_words_is_that_of_the_verb(nousctl: Nousctl, daemon: FakeDaemon) -> None:
    tells(daemon, login=["sh", "-c", "exit 3"])
    assert nousctl("runtime", "login", "it").code == 3
    tells(daemon, login=["/no/such/program"])
    assert nousctl("runtime", "login", "it").code == 1


def test_the_doctor_looks_into_a_namespace(nousctl: Nousctl, daemon: FakeDaemon) -> None:
    summary = {"name": "it", "is_default": False, "command": ["sh"], "program": "/bin/sh"}
    daemon.on["get_runtimes"] = ok("runtimes", {"runtimes": [summary]})
    where = {"isolation": "namespaced", "home": "/state/a"}
    for facts, code, line in (
        ({"is_logged_in": True, "account": "a@b"}, 0, "log-in   there is one of a@b"),
        ({"is_logged_in": False}, 1, "log-in   none: do this"),
    ):
        tells(daemon, **where, **facts)
        outcome = nousctl("runtime", "doctor", "it", "--namespace", "user:a")
        assert outcome.code == code
        assert "files    namespaced, in /state/a" in outcome.out.splitlines()
        assert line in outcome.out.splitlines()
        assert asked(daemon)[-1] == {"runtime": "it", "namespace": "user:a"}


@pytest.mark.parametrize(
    ("version", "is_tested"),
    [
        ("2.1.330 (Some Agent)", True),
        ("agent-cli 2.1.329", True),
        ("2.1.332", True),
        ("2.1.333", False),
        ("2.1.328", False),
        ("2.10.0", False),
        ("nightly", False),
    ],
)
def test_the_doctor_remarks_on_a_version_that_is_not_tested(
    nousctl: Nousctl, daemon: FakeDaemon, tmp_path: Path, version: str, is_tested: bool
) -> None:
    program = tmp_path / "agent"
    program.write_text(f"#!/bin/sh\necho '{version}'\n")
    program.chmod(0o755)
    summary = {"name": "it", "is_default": False, "command": ["agent"], "program": str(program)}
    tested = {"oldest": "2.1.329", "newest": "2.1.332"}
    daemon.on["get_runtimes"] = ok(
        "runtimes", {"runtimes": [{**summary, "tested_versions": tested}]}
    )
    tells(daemon, is_logged_in=True)
    outcome = nousctl("runtime", "doctor", "it")
    assert outcome.code == 0
    assert f"version  {version}\n" in outcome.out
    assert ("tested with 2.1.329 to 2.1.332" in outcome.out) == (not is_tested)


def test_the_doctor_has_json(nousctl: Nousctl, daemon: FakeDaemon) -> None:
    summary = {"name": "it", "is_default": False, "command": ["no-such-agent"]}
    daemon.on["get_runtimes"] = ok("runtimes", {"runtimes": [summary]})
    tells(daemon, is_logged_in=True)
    outcome = nousctl("runtime", "doctor", "it", "--json")
    assert outcome.code == 1, "there is no program"
    facts = json.loads(outcome.out)
    assert facts["auth"] == {"instructions": "do this", "is_logged_in": True}
    assert (facts["command"], "program" in facts, "version" in facts) == (
        ["no-such-agent"],
        False,
        False,
    )
