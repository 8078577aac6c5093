"""``nousd doctor`` beside a daemon that runs."""

from __future__ import annotations

from pathlib import Path

import trio

from nousd.admin.doctor.doctor import doctor
from tests.daemon.process_harness import Place, running


async def test_the_report_tells_the_daemon_that_runs_from_one_that_would_start_now(
    short_folder: Path,
) -> None:
    place = Place(short_folder, allow_exec=True)
    async with running(place):
        flags = {"socket": place.socket, "state_dir": place.state, "workdir": short_folder}
        environ = {"NOUSD_PROVIDER": "mock"}
        report = await trio.to_thread.run_sync(doctor, flags, environ, None)
    [runs] = [check for check in report.checks if check.name == "runs with"]
    assert (runs.status, runs.about) == ("ok", "running")
    for said in ("provider mock", f"workspace {place.work}", "exec on", "model mock-model"):
        assert said in runs.found
    assert runs.advice == f"one that starts now would have workspace {short_folder}, exec off"
    lines = list(report.lines())
    heads = [line for line in lines if not line.startswith("  ")]
    assert [head.partition(",")[0] for head in heads[:-1]] == [
        "the daemon that runs:",
        "its files and this machine",
        "a daemon that starts now",
    ]
    assert lines.index(f"  {runs}") < lines.index(heads[1])
