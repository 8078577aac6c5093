"""The rows of the limits table about runs and their outputs; see ``test_limits``."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from nousd.daemon.blobs import uploads
from nousd.daemon.workspace.instructions import Places, read_instructions
from nousd.machine.context import compaction, model_input_event
from nousd.providers.encoding import tool_calls as calls_of_models
from nousd.providers.http import answer_stream
from nousd.tools.output import output_capture as whole_output
from nousd.tools.output import tool_output as output
from nousd.wire.limit_table import LIMITS
from tests.daemon.limits_bench import Kit, check_command, error_text, table_text
from tests.harness.daemon import of_type
from tests.harness.stub_model import text_reply, tool_reply, whole_reply


async def check_run(kit: Kit, name: str, offset: int, bound: int) -> None:
    """Assert that a run completes, or fails with the table's error, and that the next one completes."""
    run = await kit.run()
    errors = of_type(run, "error")
    if offset > 0:
        words = (
            table_text(name).partition("...")[2]
            or table_text(name).partition("`provider_error`: ")[2]
        )
        assert words.strip().replace(f"{LIMITS[name][0]}", str(bound)) in errors[0]["cause"]
        assert errors[0]["code"] == "provider_error"
    else:
        assert errors == []
    assert (await kit.run())[-1]["payload"]["status"] == "completed"


async def answer_bytes(kit: Kit, offset: int) -> None:
    text = "x" * (LIMITS["answer_bytes_max"][0] + offset)
    kit.stub.script(text_reply(text))
    await answered_or_not(kit, "answer_bytes_max", offset, text)


async def run_answer_bytes(kit: Kit, offset: int) -> None:
    kit.bound_answers(LIMITS["answer_bytes_max"][0], of_run=1000)
    call, last = tool_reply(("say", {"text": "x"})), "x" * (1000 - len('{"text": "x"}') + offset)
    kit.stub.script(call, text_reply(last))
    await answered_or_not(kit, "run_answer_bytes_max", offset, last, bound=1000)


async def answered_or_not(
    kit: Kit, name: str, offset: int, text: str, bound: int | None = None
) -> None:
    """A run whose last answer is whole, or cut by a byte with the error of the table."""
    run = await kit.run()
    answer = of_type(run, "message_end")[-1]["text"]
    if offset > 0:
        (error,) = of_type(run, "error")
        words = table_text(name).partition("...")[2].replace("`", "")
        words = words.replace(str(LIMITS[name][0]), str(bound or LIMITS[name][0]))
        assert (error["code"], answer) == ("answer_too_long", text[:-1])
        assert error["message"].endswith(words.strip())
    else:
        assert (of_type(run, "error"), answer) == ([], text)
    assert (await kit.run())[-1]["payload"]["status"] == "completed"


async def unstreamed_answer_bytes(kit: Kit, offset: int) -> None:
    reply = whole_reply("x" * 1000)
    (body,) = reply.parts
    assert isinstance(body, bytes)
    size = len(body) - offset
    bound = kit.scale(
        "unstreamed_answer_bytes_max", answer_stream, "UNSTREAMED_ANSWER_BYTES_MAX", size
    )
    kit.stub.script(reply)
    await check_run(kit, "unstreamed_answer_bytes_max", offset, bound)


async def delta_bytes(kit: Kit, offset: int) -> None:
    text = "x" * (LIMITS["delta_bytes_max"][0] + offset)
    kit.stub.script(text_reply(text))
    deltas = [update["delta"] for update in of_type(await kit.run(), "message_update")]
    assert [len(delta) for delta in deltas] == ([len(text) - 1, 1] if offset > 0 else [len(text)])


async def tool_calls(kit: Kit, offset: int) -> None:
    bound = kit.scale("tool_calls_max", calls_of_models, "TOOL_CALLS_MAX", 3)
    kit.stub.script(tool_reply(*[("say", {"text": "x"})] * (bound + offset)))
    await check_run(kit, "tool_calls_max", offset, bound)


async def tool_arguments_chars(kit: Kit, offset: int) -> None:
    arguments = {"text": "x" * 100}
    size = len(json.dumps(arguments)) - offset
    bound = kit.scale("tool_arguments_chars_max", calls_of_models, "TOOL_ARGUMENTS_CHARS_MAX", size)
    kit.stub.script(tool_reply(("say", arguments)))
    await check_run(kit, "tool_arguments_chars_max", offset, bound)


async def tool_result_lines(kit: Kit, offset: int) -> None:
    text = "\n".join(["x"] * (LIMITS["tool_result_lines_max"][0] + offset))
    result, _ = await kit.tool_result(text)
    assert ("[Output cut: the first 2000 of 2001 lines are shown" in result) is (offset > 0)
    assert result.startswith(text[: 2 * LIMITS["tool_result_lines_max"][0] - 3])


async def tool_result_bytes(kit: Kit, offset: int) -> None:
    text = "x" * (LIMITS["tool_result_bytes_max"][0] + offset)
    result, _ = await kit.tool_result(text)
    assert ("[Output cut: " in result) is (offset > 0)
    assert result.startswith(text[: LIMITS["tool_result_bytes_max"][0]])


async def tool_preview_chars(kit: Kit, offset: int) -> None:
    text = "x" * (LIMITS["tool_preview_chars_max"][0] + offset)
    result, repeated = await kit.tool_result(text)
    assert result == text
    assert repeated == (text[:-1] if offset > 0 else text)


async def artifact_bytes(kit: Kit, offset: int) -> None:
    bound = kit.scale("artifact_bytes_max", uploads, "ARTIFACT_BYTES_MAX", 60_000)
    kit.scale("artifact_bytes_max", whole_output, "ARTIFACT_BYTES_MAX", bound)
    kit.patch.setattr(whole_output, "END_BYTES", 1000)
    await check_upload(kit, bound, offset)
    command = f"head -c {bound + offset} /dev/zero | tr '\\0' x"
    kit.stub.script(tool_reply(("bash", {"command": command})), text_reply("done"))
    (end,) = of_type(await kit.run(), "tool_execution_end")
    kept = await kit.client.request("get_artifact", artifact_id=end["artifact_id"])
    data = base64.b64decode(kept["data"])
    if offset > 0:
        assert b"x\n[129 bytes of the output were not kept]\nx" in data
        assert len(data) <= bound
    else:
        assert data == b"x" * (bound + offset)


async def check_upload(kit: Kit, bound: int, offset: int) -> None:
    piece: dict[str, Any] = {"media_type": "text/plain", "data": encoded(b"x" * (bound - 10))}
    begun = await kit.client.request("put_artifact", **piece)
    last = {**piece, "upload_id": begun["upload_id"], "final": True}
    last["data"] = encoded(b"x" * (10 + offset))
    if offset > 0:
        words = table_text("artifact_bytes_max").replace(
            str(LIMITS["artifact_bytes_max"][0]), str(bound)
        )
        assert error_text(await kit.client.refusal("put_artifact", **last)) == words
        last["data"] = encoded(b"x" * 10)
        assert (await kit.client.request("put_artifact", **last))["size_bytes"] == bound
    else:
        assert (await kit.client.request("put_artifact", **last))["size_bytes"] == bound + offset


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def artifact_range_bytes(kit: Kit, offset: int) -> None:
    put = await kit.client.request(
        "put_artifact", media_type="text/plain", data=encoded(b"x" * 10), final=True
    )
    length = LIMITS["artifact_range_bytes_max"][0] + offset
    wanted = {"artifact_id": put["artifact_id"], "length": length}
    await check_command(kit, "artifact_range_bytes_max", offset, "get_artifact", **wanted)


async def uploads_count(kit: Kit, offset: int) -> None:
    bound = kit.scale("uploads_max", uploads, "UPLOADS_MAX", 3)
    piece = {"media_type": "text/plain", "data": encoded(b"x")}
    begun = [await kit.client.request("put_artifact", **piece) for _ in range(bound + offset - 1)]
    await check_command(kit, "uploads_max", offset, "put_artifact", **piece)
    last = {**piece, "upload_id": begun[0]["upload_id"], "final": True}
    await kit.client.request("put_artifact", **last)
    await kit.client.request("put_artifact", **piece)


async def uploads_bytes(kit: Kit, offset: int) -> None:
    bound = kit.scale("uploads_bytes_max", uploads, "UPLOADS_BYTES_MAX", 100)
    piece = {"media_type": "text/plain", "data": encoded(b"x" * 60)}
    first = await kit.client.request("put_artifact", **piece)
    more = {**piece, "data": encoded(b"x" * (bound - 60 + offset))}
    await check_command(kit, "uploads_bytes_max", offset, "put_artifact", **more)
    await kit.client.request(
        "put_artifact", **{**piece, "data": "", "upload_id": first["upload_id"], "final": True}
    )
    await kit.client.request("put_artifact", **{**piece, "data": encoded(b"x" * 40)})


async def tool_updates_bytes(kit: Kit, offset: int) -> None:
    bound = kit.scale("tool_updates_bytes_max", output, "TOOL_UPDATES_BYTES_MAX", 1000)
    command = f"head -c {bound + offset} /dev/zero | tr '\\0' x"
    kit.stub.script(tool_reply(("bash", {"command": command})), text_reply("done"))
    run = await kit.run()
    streamed = "".join(update["delta"] for update in of_type(run, "tool_execution_update"))
    assert streamed.startswith("x" * min(bound, bound + offset))
    assert ("[Output goes on; no more of it is streamed.]" in streamed) is (offset > 0)
    (end,) = of_type(run, "tool_execution_end")
    assert end["result"] == "x" * (bound + offset), "the result is bounded on its own"


async def omitted(kit: Kit, offset: int) -> None:
    bound = kit.scale("omitted_max", model_input_event, "OMITTED_MAX", 2)
    silent = [text_reply()] * (bound + offset)  # no model receives an empty answer
    kit.stub.script(*silent, text_reply("done"))
    for _ in silent:
        await kit.run()
    await kit.events.subscribe(types="all")
    (model_input,) = of_type(await kit.run(), "model_input")
    assert model_input["omitted_count"] == len(silent)
    assert len(model_input["omitted"]) == min(bound, len(silent))


async def instructions_file_bytes(kit: Kit, offset: int) -> None:
    """The user's file is cut if it is longer."""
    size = LIMITS["instructions_file_bytes_max"][0] + offset
    write(kit.folder / "mine.md", "x" * size)
    mine, _ = read_instructions(Places(kit.folder, kit.folder / "mine.md", project=False))
    assert (mine.source.reason == "cut") is (offset > 0)
    assert mine.source.bytes == min(size, LIMITS["instructions_file_bytes_max"][0])


async def instructions_bytes(kit: Kit, offset: int) -> None:
    """Of the user's file and two of the project, the one of the root is cut."""
    whole, one = LIMITS["instructions_bytes_max"][0], LIMITS["instructions_file_bytes_max"][0]
    write(kit.folder / "mine.md", "x" * one)
    write(kit.folder / "repo" / ".git", "")
    write(kit.folder / "repo" / "AGENTS.md", "y" * (10 + offset))
    write(kit.folder / "repo" / "sub" / "AGENTS.md", "z" * (whole - one - 10))
    places = Places(kit.folder / "repo" / "sub", kit.folder / "mine.md", project=True)
    _, of_root, _ = found = read_instructions(places)
    assert (of_root.source.reason == "cut") is (offset > 0)
    assert sum(len(source.text) for source in found) == min(whole + offset, whole)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


async def summary_chars(_kit: Kit, offset: int) -> None:
    text = "x" * (LIMITS["summary_chars_max"][0] + offset)
    shown = compaction.truncate_summary(text)
    assert len(shown) == min(len(text), LIMITS["summary_chars_max"][0])
    assert (shown == text) is (offset <= 0)
