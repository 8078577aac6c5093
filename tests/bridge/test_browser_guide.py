"""The guide for web pages: its curl lines run as written, and its numbers are those of the code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from nousd.runtime_paths.tickets import LINK_SECONDS, LINKS_MAX, SESSION_SECONDS, SESSIONS_MAX
from tests.bridge.test_processes import ask, free_port, running, token_of
from tests.daemon.process_harness import REPOSITORY
from tests.harness.daemon import WAIT_SECONDS

GUIDE: Final = (REPOSITORY / "protocol" / "browsers.md").read_text(encoding="utf-8")
MARK: Final = "<!-- a test runs exactly these lines -->\n```sh\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_curl_lines_of_the_guide_for_web_pages_work(short_folder: Path) -> None:
    (lines,) = re.findall(re.escape(MARK) + r"(.*?)```", GUIDE, re.DOTALL)
    (short_folder / "state").mkdir(mode=0o700)
    port = free_port()
    with running(short_folder, "serve", f"127.0.0.1:{port}") as daemon:
        assert ask(port, "/global/health")[0] == 200
        done = subprocess.run(
            ["sh", "-e", "-u", "-c", lines],
            env={
                "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
                "HOME": str(short_folder),
                "URL": f"http://127.0.0.1:{port}",
                "TOKEN": token_of(short_folder),
                "NOUSD_STATE_DIR": str(short_folder / "state"),
            },
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        shown = done.stdout.replace("}", "}\n", 1).splitlines()
        assert re.fullmatch(r'\{"origin":"http://127.0.0.1:\d+","expiresAtMs":\d+\}', shown[0])
        assert '"session.created"' in done.stdout
        assert shown[-8:] == ["403", "403", "403", "200", "200", "403", "204", "401"]
        assert daemon.stop() == 0


def test_the_guide_for_web_pages_names_the_bounds() -> None:
    words = " ".join(GUIDE.split())
    assert f"valid for {SESSION_SECONDS / 3600:.0f} hours" in words
    assert f"at most {SESSIONS_MAX} sessions" in words
    assert f"at most {LINKS_MAX} unused ones" in words
    assert LINK_SECONDS == 5 * 60
    assert "within five minutes" in words
