"""The limit of open files that the daemon sets for itself."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from nousd.daemon.ops.process import DESCRIPTORS_WANTED

PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
from nousd.daemon.ops.process import allow_many_descriptors
allow_many_descriptors()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("soft", "hard", "becomes"),
    [
        (1024, DESCRIPTORS_WANTED + 1000, DESCRIPTORS_WANTED),
        (1024, 2048, 2048),
        (DESCRIPTORS_WANTED + 500, DESCRIPTORS_WANTED + 1000, DESCRIPTORS_WANTED + 500),
    ],
    ids=["as far as wanted", "as far as allowed", "not lowered"],
)
def test_the_open_file_limit_is_raised_as_far_as_wanted_and_allowed(
    soft: int, hard: int, becomes: int
) -> None:
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    if os.geteuid() != 0 and allowed != resource.RLIM_INFINITY and allowed < hard:
        pytest.skip(f"at most {allowed} files may be opened here")
    printed = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(soft), str(hard)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout.split() == [str(becomes), str(hard)]
