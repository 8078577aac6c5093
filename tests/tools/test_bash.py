"""Real commands, which wait for a FIFO or a signal, never for time."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from nousd.errors import ToolArgumentsInvalid, ToolError
from nousd.tools.spooled_file import SpooledFile
from nousd.wire.limits import TOOL_UPDATES_BYTES_MAX
from tests.harness.daemon import WAIT_SECONDS
from tests.tools.bench import Bench, Lifeline

HOLD = 'exec 9>"{fifo}"; echo ready >&9; '


async def test_output_is_the_text_without_its_last_newline(bench: Bench) -> None:
    result = await bench.call("bash", command="echo hello")
    assert (result.text, result.is_error, result.full) == ("hello", False, None)
    assert "".join(bench.emitted) == "hello\n"


@pytest.mark.behaviour("output_says_which_stream_it_is_of")
async def test_each_piece_of_output_names_its_stream_and_comes_when_it_was_written(
    bench: Bench, line: Lifeline
) -> None:
    pieces: list[tuple[str | None, str]] = []
    gate = line.path.with_name("gate")

    async def emit(text: str, stream: str | None = None) -> None:
        pieces.append((stream, text))
        if len(pieces) < 3:
            await trio.to_thread.run_sync(gate.write_text, "")

    bench.context = bench.context.__class__(path_sandbox=bench.context.path_sandbox, emit=emit)
    command = f'mkfifo "{gate}"; echo a; cat "{gate}"; echo b >&2; cat "{gate}"; echo c'
    result = await bench.text("bash", command=command)
    assert pieces == [("stdout", "a\n"), ("stderr", "b\n"), ("stdout", "c\n")]
    assert result == "a\nb\nc"


async def test_each_stream_comes_in_the_order_of_writing(bench: Bench) -> None:
    command = "for i in 1 2 3 4 5 6 7 8; do echo o$i; echo e$i >&2; done"
    text = await bench.text("bash", command=command)
    for name, kind in (("o", "stdout"), ("e", "stderr")):
        wanted = [f"{name}{number}" for number in range(1, 9)]
        assert [word for word in text.split() if word[0] == name] == wanted
        told = zip(bench.streams, bench.emitted, strict=True)
        assert "".join(piece for stream, piece in told if stream == kind).split() == wanted


async def test_redirected_to_one_stream_all_comes_in_the_order_of_writing(bench: Bench) -> None:
    text = await bench.text("bash", command="exec 2>&1; echo a; echo b >&2; echo c")
    assert (text, set(bench.streams)) == ("a\nb\nc", {"stdout"})


async def test_a_stream_that_is_closed_early_does_not_end_the_other(bench: Bench) -> None:
    text = await bench.text("bash", command="exec 2>&-; echo a; exec >&-; sleep 0.05; true")
    assert text == "a"


@pytest.mark.parametrize(
    ("command", "text", "is_error"),
    [
        ("true", "(no output)", False),
        ("exit 3", "(no output)\n\nCommand exited with code 3", True),
        ("echo x; exit 1", "x\n\nCommand exited with code 1", True),
        ("kill -9 $$", "(no output)\n\nCommand exited with code 137", True),
        ("no_such_program_1", None, True),
    ],
)
async def test_the_exit_status_of_a_command_is_reported_in_the_words_of_v1(
    command: str, text: str | None, is_error: bool, bench: Bench
) -> None:
    result = await bench.call("bash", command=command)
    assert result.is_error is is_error
    if text is None:
        assert result.text.endswith("\n\nCommand exited with code 127")
    else:
        assert result.text == text


async def test_a_command_runs_in_the_workspace_without_input_and_in_its_own_session(
    bench: Bench,
) -> None:
    command = 'pwd; cat; read -r _ _ _ _ _ sid _ < /proc/$$/stat; [ "$sid" = $$ ] && echo leader'
    assert await bench.text("bash", command=command) == f"{bench.work}\nleader"


async def test_only_allowed_variables_are_passed_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "GITHUB_TOKEN", "LC_API_KEY", "BASH_ENV", "LD_PRELOAD_X"):
        monkeypatch.setenv(name, "s3cret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("HOME", "/home/someone")
    output = await bench.text("bash", command="env")
    assert "s3cret" not in output
    lines = output.splitlines()
    assert "HOME=/home/someone" in lines
    assert "LANG=C.UTF-8" in lines
    made_by_bash = {"PWD", "SHLVL", "_", "OLDPWD"}
    names = {line.partition("=")[0] for line in lines} - made_by_bash
    common = {"NOUSD_INSIDE", "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "TMPDIR"}
    assert {name for name in names if not name.startswith(("LC_", "LANG"))} <= common


async def test_output_is_streamed_while_the_command_runs(bench: Bench, line: Lifeline) -> None:
    seen = trio.Event()

    async def emit(text: str, _: object = None) -> None:
        bench.emitted.append(text)
        seen.set()

    bench.context = bench.context.__class__(path_sandbox=bench.context.path_sandbox, emit=emit)
    gate = line.path.with_name("gate")
    command = f'mkfifo "{gate}"; echo first; cat "{gate}"; echo last'
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: bench.call("bash", command=command))
            await seen.wait()
            assert bench.emitted == ["first\n"]
            await trio.to_thread.run_sync(gate.write_text, "middle\n")
    assert "".join(bench.emitted) == "first\nmiddle\nlast\n"


@pytest.mark.slow
async def test_a_command_that_prints_200_megabytes_takes_bounded_memory(bench: Bench) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    command = "yes 123456789012345678901234567890123456789 | head -c 200000000"
    result = await bench.call("bash", command=command)
    assert "of 5000000 lines are shown, 200000000 bytes in all." in result.text
    assert len(result.text) < 60_000
    assert isinstance(result.full, SpooledFile)
    assert result.full.size_bytes == 200_000_000
    assert await result.full.read(199_999_960, 80) == b"123456789012345678901234567890123456789\n"
    result.full.close()
    assert len("".join(bench.emitted)) < TOOL_UPDATES_BYTES_MAX + 100
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 32 * 1024  # KiB


async def test_a_command_past_its_timeout_is_ended_and_keeps_its_output(
    bench: Bench, line: Lifeline, mock_clock: MockClock
) -> None:
    command = f'exec 9>"{line.path}"; echo begun; echo ready >&9; sleep 1000'
    result = await line.time_out(
        lambda: bench.call("bash", command=command, timeout=5), mock_clock, seconds=5
    )
    assert result.is_error
    assert result.text == "begun\n\nCommand timed out after 5 seconds"
    await line.wait_gone()


SAY = "echo ready >&9; "
ABORTED = {
    "a group": "sleep 1000 & sleep 1000",
    "ignores SIGTERM": f"trap '' TERM; {SAY} (sleep 1000 & sleep 1000); sleep 1000",
    "left the group": f"setsid sh -c '{SAY} sleep 1000; true' & sleep 1000",
    "a double fork": f"(setsid sh -c 'trap \"\" TERM; {SAY} sleep 1000; true' &); sleep 1000",
    "is stopped": f"sh -c '{SAY} kill -STOP $$' & sleep 1000",
}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("command", ABORTED.values(), ids=ABORTED.keys())
async def test_an_abort_ends_every_process_of_the_command(
    command: str, bench: Bench, line: Lifeline
) -> None:
    hold = HOLD.format(fifo=line.path)
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: bench.call("bash", command=hold + command))
            await line.wait_ready(1 + command.count(SAY))
            nursery.cancel_scope.cancel()
    assert line.is_gone()  # the call did not end before they did


async def test_a_background_child_neither_delays_nor_outlives_the_end_of_its_command(
    bench: Bench, line: Lifeline
) -> None:
    hold = HOLD.format(fifo=line.path)
    result = await bench.call("bash", command=f"{hold} sleep 1000 & setsid sleep 1000 & echo done")
    assert (result.text, result.is_error) == ("done", False)
    assert line.is_gone()


async def test_a_command_that_kills_its_supervisor_fails_and_ends_with_it(
    bench: Bench, line: Lifeline
) -> None:
    hold = HOLD.format(fifo=line.path)
    with pytest.raises(ToolError, match=r"^bash_failed: the command lost its supervisor$"):
        await bench.call("bash", command=f"{hold} sleep 1000 & kill -9 $PPID; sleep 1000")
    await line.wait_gone()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("echo a\0b", "must not hold a NUL character"),
        ("#" * 131072, "must have at most 131071 bytes"),
    ],
)
async def test_a_command_with_a_nul_or_too_many_bytes_is_refused(
    command: str, reason: str, bench: Bench
) -> None:
    with pytest.raises(ToolArgumentsInvalid, match=f"^validation_failed: bash.command {reason}$"):
        await bench.call("bash", command=command)


async def test_the_longest_command_runs(bench: Bench) -> None:
    result = await bench.call("bash", command="echo ok #" + "x" * (131071 - 9))
    assert result.text == "ok"


async def test_a_missing_workspace_is_an_error_of_the_call(bench: Bench) -> None:
    bench.work.rename(bench.work.with_name("gone"))
    with pytest.raises(ToolError, match="could not be started: No such file or directory"):
        await bench.call("bash", command="true")


async def test_concurrent_commands_leave_no_descriptor_open(bench: Bench) -> None:
    def open_descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    await bench.call("bash", command="true")
    before = open_descriptors()
    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(lambda: bench.call("bash", command="echo x"))
    assert open_descriptors() == before
