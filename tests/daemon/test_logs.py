"""The daemon's own log: its lines, its file, and standard error."""

from __future__ import annotations

import json
import logging
import os
import pty
import stat
import subprocess
import sys
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from nousd.daemon.ops import logs
from nousd.daemon.ops.logs import TEXT_CHARS_MAX, configure_logging
from nousd.errors import ConfigError
from nousd.redaction.redactor import Redactor
from tests.harness.daemon import WAIT_SECONDS

SECRET = "sk-0123456789abcdef"

logger = logging.getLogger("nousd.daemon.test")
library = logging.getLogger("some_library")


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "nousd.log"


@contextmanager
def logging_to(log_file: Path, **options: Any) -> Iterator[None]:
    """Log to the file alone; standard error is discarded."""
    with Path(os.devnull).open("w") as nowhere:  # noqa: SIM117
        with configure_logging(log_file, stderr_fd=nowhere.fileno(), **options):
            yield


def lines_of(log_file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log_file.read_bytes().split(b"\n") if line]


def pipe_output(write: Callable[[], None]) -> str:
    """Return the log on a standard error that is not a terminal."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as output:
        with os.fdopen(writer, "w"), configure_logging(None, stderr_fd=writer):
            write()
        return output.read()


def terminal_output(write: Callable[[], None]) -> str:
    master, slave = pty.openpty()
    tty.setraw(slave)
    with configure_logging(None, stderr_fd=slave):
        write()
    output = os.read(master, 65_536).decode()
    os.close(slave)
    os.close(master)
    return output


# --- lines -----------------------------------------------------------------------------------


def test_a_line_of_the_file_holds_time_level_logger_message_and_extras(log_file: Path) -> None:
    with logging_to(log_file):
        logger.warning("run %s ended", "run-1", extra={"session_id": "s-1", "turns": 3})
    [line] = lines_of(log_file)
    ts = line.pop("ts")
    assert time.strptime(ts[:19], "%Y-%m-%dT%H:%M:%S")
    assert ts[19] == "."
    assert ts.endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "nousd.daemon.test",
        "message": "run run-1 ended",
        "session_id": "s-1",
        "turns": 3,
    }


def test_an_exception_is_part_of_its_one_line(log_file: Path) -> None:
    with logging_to(log_file):
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logger.exception("a fault")
    assert log_file.read_bytes().count(b"\n") == 1
    [line] = lines_of(log_file)
    assert line["message"] == "a fault"
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: two\nlines")


def test_values_of_any_type_can_be_logged(log_file: Path) -> None:
    class Unknown:
        def __str__(self) -> str:
            return "an object"

    values = {
        "path": Path("/a"),
        "unknown": Unknown(),
        "huge": 2**70,
        "none": None,
        "yes": True,
        "ratio": 0.5,
        "surrogate": "\ud800",
    }
    with logging_to(log_file):
        logger.info("a file: \udcff", extra=values)
    [line] = lines_of(log_file)
    assert line["message"] == "a file: \ufffd"
    assert {key: line[key] for key in values} == {
        "path": "/a",
        "unknown": "an object",
        "huge": str(2**70),
        "none": None,
        "yes": True,
        "ratio": 0.5,
        "surrogate": "\ufffd",
    }


def test_mismatched_arguments_still_make_a_log_line(log_file: Path) -> None:
    with logging_to(log_file):
        logger.info("%d runs", "many")
    assert lines_of(log_file)[0]["message"] == "%d runs (its arguments do not fit)"


def test_extras_cannot_replace_the_fields_of_a_line(log_file: Path) -> None:
    with logging_to(log_file):
        logger.info("real", extra={"level": "fake", "ts": "fake", "logger": "fake"})
    [line] = lines_of(log_file)
    assert "fake" not in line.values()


def test_a_value_is_logged_as_it_was_at_the_time(log_file: Path) -> None:
    state = ["before"]
    with logging_to(log_file):
        logger.info("state %s", state, extra={"state": state})
        state[0] = "after"
    [line] = lines_of(log_file)
    assert line["message"] == "state ['before']"
    assert line["state"] == "['before']"


def test_other_handlers_receive_the_unchanged_record(
    log_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with logging_to(log_file):
        logger.warning("run %s", "run-1", extra={"path": Path("/a")})
    [record] = caplog.records
    assert (record.msg, record.args) == ("run %s", ("run-1",))
    assert vars(record)["path"] == Path("/a")


def test_a_text_past_the_limit_keeps_its_beginning_and_end(log_file: Path) -> None:
    with logging_to(log_file):
        logger.info("begin%send", "x" * 10 * TEXT_CHARS_MAX)
    message = lines_of(log_file)[0]["message"]
    assert message.startswith("beginxxx")
    assert message.endswith("xxxend")
    assert len(message) < TEXT_CHARS_MAX + 100
    assert f" ... {9 * TEXT_CHARS_MAX + 8} characters left out ... " in message


# --- levels ----------------------------------------------------------------------------------


def test_debug_messages_are_logged_only_if_verbose(log_file: Path) -> None:
    for verbose in (False, True):
        with logging_to(log_file, verbose=verbose):
            logger.debug("verbose %s", verbose)
            logger.info("info %s", verbose)
    messages = [line["message"] for line in lines_of(log_file)]
    assert messages == ["info False", "verbose True", "info True"]


def test_only_warnings_of_other_libraries_are_logged(log_file: Path) -> None:
    with logging_to(log_file, verbose=True):
        library.info("HTTP request")
        library.warning("trouble")
    assert [line["message"] for line in lines_of(log_file)] == ["trouble"]


def test_logging_is_restored_afterwards(log_file: Path) -> None:
    root, ours = logging.getLogger(), logging.getLogger("nousd")

    def state() -> tuple[object, ...]:
        return list(root.handlers), root.level, ours.level, logging.raiseExceptions

    before = state()
    threads = threading.active_count()
    with logging_to(log_file):
        logger.warning("inside")
    logger.warning("outside")
    assert state() == before
    assert threading.active_count() == threads
    assert [line["message"] for line in lines_of(log_file)] == ["inside"]


# --- secrets ---------------------------------------------------------------------------------


def test_secrets_are_replaced_in_messages_arguments_extras_and_exceptions(log_file: Path) -> None:
    with logging_to(log_file, redactor=Redactor([SECRET])):
        try:
            raise ValueError(f"Authorization: Bearer {SECRET}")
        except ValueError:
            logger.exception(f"key {SECRET} %s", SECRET, extra={"url": f"https://x/?key={SECRET}"})  # noqa: G004
        logger.info("%d", SECRET)
    assert SECRET not in log_file.read_text()
    line = lines_of(log_file)[0]
    assert line["message"] == "key [redacted] [redacted]"
    assert line["url"] == "https://x/?key=[redacted]"
    assert line["exception"].endswith("Bearer [redacted]")


def test_secrets_are_replaced_before_a_long_text_is_truncated(log_file: Path) -> None:
    half = "x" * (TEXT_CHARS_MAX // 2 - 5)
    with logging_to(log_file, redactor=Redactor([SECRET])):
        logger.info("%s%s%s", half, SECRET, half * 2)
    assert SECRET[:5] not in log_file.read_text()


def test_secrets_are_replaced_on_the_terminal_too() -> None:
    redactor = Redactor([SECRET])
    master, slave = pty.openpty()
    with configure_logging(None, stderr_fd=slave, redactor=redactor):
        logger.info("key %s", SECRET)
    output = os.read(master, 65_536).decode()
    os.close(slave)
    os.close(master)
    assert "key [redacted]" in output


def test_a_secret_added_later_is_replaced_from_then_on(log_file: Path) -> None:
    redactor = Redactor()
    with logging_to(log_file, redactor=redactor):
        redactor.add(SECRET)
        logger.info("key %s", SECRET)
    assert lines_of(log_file)[0]["message"] == "key [redacted]"


# --- standard error --------------------------------------------------------------------------


def test_standard_error_that_is_not_a_terminal_gets_json_lines() -> None:
    output = pipe_output(lambda: logger.info("ready", extra={"socket": "/run/a"}))
    assert json.loads(output)["socket"] == "/run/a"


def test_a_terminal_gets_a_short_readable_line() -> None:
    output = terminal_output(lambda: logger.info("ready", extra={"socket": "/run/a", "n": 1}))
    clock, _, rest = output.partition(" ")
    assert time.strptime(clock, "%H:%M:%S")
    assert rest == "info test: ready socket=/run/a n=1\n"


def test_a_terminal_shows_a_traceback_line_by_line() -> None:
    def fail() -> None:
        try:
            raise ValueError("broken")
        except ValueError:
            logger.exception("a fault")

    lines = terminal_output(fail).splitlines()
    assert lines[0].endswith("error test: a fault")
    assert lines[1].startswith("Traceback")
    assert lines[-1] == "ValueError: broken"


def test_control_characters_are_escaped_on_a_terminal() -> None:
    output = terminal_output(
        lambda: logger.info("\x1b[2J\nforged \x9b", extra={"name_": "a\rb\u2028c"})
    )
    assert output.count("\n") == 1
    assert r"\x1b[2J\nforged \x9b name_=a\rb\u2028c" in output


# --- the file --------------------------------------------------------------------------------


def test_the_file_is_private_under_any_umask(log_file: Path, any_umask: int) -> None:
    with logging_to(log_file):
        logger.info("a line")
    assert stat.S_IMODE(log_file.stat().st_mode) == 0o600


def test_the_file_is_appended_to(log_file: Path) -> None:
    for message in ("one", "two"):
        with logging_to(log_file):
            logger.info(message)
    assert [line["message"] for line in lines_of(log_file)] == ["one", "two"]


def test_a_full_log_file_is_rotated_and_only_three_old_ones_are_kept(
    log_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LOG_BYTES_MAX", 2000)
    with logging_to(log_file):
        for number in range(100):
            logger.info("%04d %s", number, "x" * 100)
    files = sorted(log_file.parent.iterdir())
    assert [path.name for path in files] == [
        "nousd.log",
        "nousd.log.1",
        "nousd.log.2",
        "nousd.log.3",
    ]
    assert all(path.stat().st_size <= 2000 for path in files)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    assert lines_of(log_file)[-1]["message"].startswith("0099")


def test_an_error_names_the_log_file_that_cannot_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "nousd.log"
    with (
        pytest.raises(ConfigError, match=f"^the log file {path} cannot be opened: No such file"),
        configure_logging(path),
    ):
        pass


# --- a reader that does not read -------------------------------------------------------------


def fill(writer: int) -> None:
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)


def test_an_unread_pipe_blocks_no_caller_and_dropped_lines_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "_QUEUED_LINES_MAX", 10)
    reader, writer = os.pipe()
    fill(writer)
    with os.fdopen(reader, "rb") as output:
        with os.fdopen(writer, "wb"), configure_logging(None, stderr_fd=writer):
            for number in range(100):
                logger.info("line %d", number)
            # Now a thread reads the pipe to its end.
            drained: list[bytes] = []
            thread = threading.Thread(target=lambda: drained.append(output.read()))
            thread.start()
        thread.join(WAIT_SECONDS)
    lines = [json.loads(line) for line in drained[0].lstrip(b"x").split(b"\n") if line]
    messages = [line["message"] for line in lines]
    written = [message for message in messages if message.startswith("line ")]
    [dropped] = [message for message in messages if "dropped" in message]
    # Ten waited in the queue; one more may have been in the hands of the writing thread.
    assert len(written) in (10, 11)
    assert dropped.startswith(f"{100 - len(written)} log lines were dropped")


LOG_AND_END = """
import logging, sys
from nousd.daemon.ops import logs
logs._DRAIN_SECONDS = 0.01
with logs.configure_logging(None):
    logging.getLogger("nousd").warning("a line")
sys.exit(7)
"""


def test_a_process_exits_even_if_nobody_reads_its_log() -> None:
    reader, writer = os.pipe()
    fill(writer)
    with closing(os.fdopen(reader)), os.fdopen(writer) as full_pipe:
        ended = subprocess.run(
            [sys.executable, "-c", LOG_AND_END], stderr=full_pipe, timeout=30, check=False
        )
    assert ended.returncode == 7
