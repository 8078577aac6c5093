"""Options, Hypothesis profiles and fixtures for all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

from tests.suites import SUITES, deselect

# The duration of an example depends on the machine, so there is no deadline. The default suite tries the
# same examples each time; `scripts/test --all` looks for new ones.
settings.register_profile("default", deadline=None, max_examples=20, derandomize=True)
settings.register_profile("thorough", deadline=None, derandomize="CI" in os.environ)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--suite",
        choices=SUITES,
        default="all",
        help="default: without most of what is marked slow; rest: only that; all: both",
    )
    parser.addoption(
        "--programs",
        nargs="+",
        metavar="NAME",
        help="only the contract of agent programs, with these real ones (scripts/runtimes)",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return half as many again as there are cores: a third of the time a test waits for a disk, a
    process or a clock.
    """
    cores = len(os.sched_getaffinity(0))
    return cores + cores // 2


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all tests are collected: nothing of that is garbage
    suite = config.getoption("suite")
    settings.load_profile("default" if suite == "default" else "thorough")


# Last, so that it selects among what -k, -m and node ids have left.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = deselect(items, config.getoption("suite"))
    config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    # Modules and collected tests live to the end: without this, each collection of garbage looks through
    # them again, which is a tenth of what the tests compute.
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # Workers send their reports as UTF-8, which has no lone surrogates; some tests log them.
    report.sections = [
        (name, text.encode(errors="replace").decode()) for name, text in report.sections
    ]
    return report


# Daemons that tests start must not depend on the model servers of this machine.
os.environ.setdefault("NOUSD_PROVIDER", "mock")

# A shell starts background processes with SIGINT ignored; without this, children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=[0o000, 0o022, 0o777], ids="umask_{:04o}".format)
def any_umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Run the test under a umask of 0, the usual one, and one that masks everything."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can create files of another user")
