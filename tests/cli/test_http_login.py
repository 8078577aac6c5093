"""``nousctl http login``: a link for a browser, made without a running server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nousd.runtime_paths.tickets import hash_token, login_links

TOKEN = "a-token-that-only-tests-know"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "http-token").touch(mode=0o600)
    (state / "http-token").write_text(TOKEN)
    return state


def login(state: Path, *more: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nousd.cli.nousctl.main", "http", "login", *more],
        env={
            **os.environ,
            "NOUSD_CONFIG": "",
            "NOUSD_STATE_DIR": str(state),
            "XDG_CONFIG_HOME": str(state.parent),
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("more", "environ", "page"),
    [
        (["--http", "127.0.0.1:39731"], {}, "http://127.0.0.1:39731/auth/login"),
        ([], {"NOUSD_HTTP": "[::1]:8000"}, "http://[::1]:8000/auth/login"),
        (["--page", "https://a.example/x"], {"NOUSD_HTTP": "unix:/s"}, "https://a.example/x"),
    ],
)
def test_the_link_is_the_only_output_and_its_secret_is_valid_for_this_token(
    state: Path, more: list[str], environ: dict[str, str], page: str
) -> None:
    done = login(state, *more, **environ)
    assert done.returncode == 0
    assert done.stderr == "Open it in a browser: it works once, within 5 minutes.\n"
    link = re.fullmatch(re.escape(page) + r"#([\w-]{43})\n", done.stdout)
    assert link is not None
    assert TOKEN not in done.stdout
    assert login_links(state).take(link[1], hash_token(TOKEN)) is not None


@pytest.mark.parametrize("http", ["", "unix:/s", "127.0.0.1:0", "0.0.0.0:80", "[::]:80"])
@pytest.mark.slow(keep=2)
def test_without_an_address_that_a_browser_can_open_it_says_how_to_name_one(
    state: Path, http: str
) -> None:
    done = login(state, NOUSD_HTTP=http)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "--http 127.0.0.1:PORT" in done.stderr
    assert "--page" in done.stderr


@pytest.mark.slow
def test_without_a_token_there_is_no_link(state: Path) -> None:
    (state / "http-token").unlink()
    done = login(state, "--http", "127.0.0.1:80")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no token" in done.stderr
    assert [*state.iterdir()] == []


@pytest.mark.slow
def test_an_address_with_a_fragment_or_another_scheme_is_no_page(state: Path) -> None:
    for page in ("a.example/x", "http://a.example/#x", "javascript:alert(1)", "file:///x"):
        done = login(state, "--page", page)
        assert (done.returncode, done.stdout) == (2, "")
        assert "--page" in done.stderr
