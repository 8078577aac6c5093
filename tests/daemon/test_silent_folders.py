"""Folders on disks that do not respond: requests that need them are refused, others continue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.daemon.error_boundary import to_run_failure
from nousd.errors import CommandRejected, FoldersSilent
from nousd.tools.fs import folder_threads
from tests.daemon.workspaces_bench import folders_in, several_folders


class ExhaustedLimiter:
    """A limiter of folder threads, all of which hang."""

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        await trio.lowlevel.checkpoint()
        raise FoldersSilent("folders_do_not_answer: 32 looks at folders wait for their disks")

    def release_on_behalf_of(self, borrower: object) -> None:
        raise AssertionError("nothing was acquired")


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        ("new_session", {"workspace": "$A"}),
        ("list_trust", {"workspace": "$A"}),
        (
            "prompt",
            {"text": "hi", "attachments": [{"path": "name.txt", "media_type": "text/plain"}]},
        ),
    ],
)
async def test_a_command_that_needs_a_folder_is_refused_while_too_many_lookups_hang(
    command: str, fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = folders_in(tmp_path)
    async with several_folders(folders) as bench:
        await bench.session()
        monkeypatch.setattr(folder_threads, "_places", ExhaustedLimiter())
        given = {key: str(folders.a) if value == "$A" else value for key, value in fields.items()}
        error = await bench.client.refusal(command, **given)
        assert (error["code"], error["message"]) == ("command_rejected", "folders_do_not_answer")
        assert "wait for their disks" in error["cause"]
        assert (await bench.client.request("ping"))["message"] == "pong"


def test_the_failure_of_a_run_has_the_same_code_and_cause() -> None:
    failure = to_run_failure(CommandRejected("folders_do_not_answer", cause="32 looks wait"))
    assert (failure.code, failure.cause) == ("folders_do_not_answer", "32 looks wait")
