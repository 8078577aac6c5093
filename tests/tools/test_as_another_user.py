"""The tests of what holds a command also pass as another user, in a home folder of his own.

Root may do more to a file than its owner, and bubblewrap needs no user namespaces of root: what only
works for root would show here. A file whose tests use a sandbox bench is found by itself.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.harness import another_user
from tests.tools.bench import REPOSITORY
from tests.tools.sandbox_bench import show

USES_A_SANDBOX = re.compile(r"\b(?:sandbox|landlock)_bench\b")

OTHERS = (
    "tests/daemon/test_closed_files.py",
    "tests/daemon/test_intruders.py",
    "tests/daemon/test_sandboxing.py",
    "tests/tools/test_git_layout.py",
)
"""These run the whole daemon, or git outside."""

OWN = Path(__file__).name

FILES = sorted(
    str(path.relative_to(REPOSITORY))
    for path in Path(__file__).parent.glob("test_*.py")
    if path.name != OWN and USES_A_SANDBOX.search(path.read_text())
)

SECONDS_MAX = 1800


@pytest.mark.slow
@pytest.mark.parametrize("file", [*OTHERS, *FILES])
def test_the_tests_of_a_sandbox_pass_as_another_user(
    file: str, request: pytest.FixtureRequest
) -> None:
    if (reason := another_user.why_not()) is not None:
        pytest.skip(reason)
    # Not below the tests' own directory, which others cannot enter.
    with tempfile.TemporaryDirectory(prefix="nousd-test-") as folder:
        another_user.give(Path(folder))
        ended = subprocess.run(
            another_user.as_another_user([*in_process(request), f"--basetemp={folder}/base", file]),
            cwd=REPOSITORY,
            env=another_user.environment() | {"HYPOTHESIS_STORAGE_DIRECTORY": folder},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
    show(ended.stdout + ended.stderr)
    # 5: none of the tests of that file belongs to the suite.
    assert ended.returncode in (0, 5), ended.stdout[-4000:] + ended.stderr[-1000:]
    if not re.search(r"^\d+ passed", ended.stdout, re.MULTILINE):
        pytest.skip(f"no test ran: {ended.stdout[-1000:]}")


def in_process(request: pytest.FixtureRequest) -> list[str]:
    """Return the command for tests of the same suite, which write nothing into the checkout."""
    suite = request.config.getoption("--suite")
    return [
        *(sys.executable, "-m", "pytest", f"--suite={suite}"),
        *("-q", "-rs", "-p", "no:xdist", "-p", "no:cacheprovider"),
    ]


def test_what_needs_a_sandbox_is_among_the_files() -> None:
    assert len(FILES) > 5
    assert all((REPOSITORY / file).is_file() for file in OTHERS)
