"""The rows of the limits table about patches, pages and to-do lists; see ``test_limits``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from nousd.errors import ToolError
from nousd.tools.builtin import patch, web_fetch
from nousd.tools.web import request as web_request
from nousd.wire.limit_table import LIMITS
from tests.daemon.limits_bench import Kit
from tests.harness.daemon import Payload, of_type
from tests.harness.stub_model import text_reply, tool_reply
from tests.tools.bench import Bench
from tests.tools.web_bench import fetch, page, redirecting, web


async def result_of(kit: Kit, tool: str, **args: Any) -> Payload:
    """Return the end of a call."""
    kit.stub.script(tool_reply((tool, args)), text_reply("done"))
    (end,) = of_type(await kit.run(), "tool_execution_end")
    return end


def was_refused(end: Payload, name: str) -> bool:
    """Return True if the call failed with the table's message; assert that it succeeded otherwise."""
    words = LIMITS[name][1].partition("`")[2].partition("`")[0].partition("...")[0]
    refused: bool = end["is_error"]
    assert refused == end["result"].startswith(f"tool_error: {words}"), end["result"]
    return refused


async def patch_chars(kit: Kit, offset: int) -> None:
    kit.bound_answers(4 * LIMITS["patch_chars_max"][0])
    text = "--- /dev/null\n+++ new\n@@ -0,0 +1 @@\n+x\n\n"
    text += "x" * (LIMITS["patch_chars_max"][0] + offset - len(text))
    assert was_refused(await result_of(kit, "patch", patch=text), "patch_chars_max") is (offset > 0)


async def patch_files(kit: Kit, offset: int) -> None:
    count = LIMITS["patch_files_max"][0] + offset
    text = "".join(f"diff --git a/{n} b/{n}\nnew file mode 100644\n" for n in range(count))
    end = await result_of(kit, "patch", patch=text, dryRun=True)
    assert was_refused(end, "patch_files_max") is (offset > 0)


async def patched_bytes(kit: Kit, offset: int) -> None:
    """The limit applies to the file before the patch, and to the result."""
    most = kit.scale("patched_bytes_max", patch, "PATCHED_BYTES_MAX", 1000)
    content = "x" * (most // 2 + offset - 1) + "\n"
    text = (
        f"--- /dev/null\n+++ new\n@@ -0,0 +1 @@\n+{content}--- /dev/null\n+++ b\n@@ -0,0 +1 @@\n+"
    )
    text += "y" * (most // 2 - 1) + "\n"
    end = await result_of(kit, "patch", patch=text)
    assert end["is_error"] is (offset > 0)
    assert ("larger than" in end["result"]) is (offset > 0)


async def web_page_bytes(kit: Kit, offset: int) -> None:
    most = kit.scale("web_page_bytes_max", web_request, "WEB_PAGE_BYTES_MAX", 1000)
    kit.scale("web_page_bytes_max", web_fetch, "WEB_PAGE_BYTES_MAX", 1000)
    async with web(page("x" * (most + offset))) as server:
        text = (await fetch(Bench(kit.folder / "bench"), server.url())).text
    assert ("[Only the first 1000 bytes of the page were read.]" in text) is (offset > 0)


async def web_redirects(kit: Kit, offset: int) -> None:
    count = LIMITS["web_redirects_max"][0] + offset
    async with web(redirecting({f"/{n}": f"/{n + 1}" for n in range(count)})) as server:
        try:
            text = (await fetch(Bench(kit.folder / "bench"), server.url("/0"))).text
        except ToolError as error:
            text = str(error)
    assert (text == "web_fetch_failed: more than 5 redirects") is (offset > 0)


async def todos(kit: Kit, offset: int) -> None:
    count = LIMITS["todos_max"][0] + offset
    end = await result_of(kit, "todo", todos=[{"content": "x"}] * count)
    assert was_refused(end, "todos_max") is (offset > 0)
    kept = (await kit.client.request("get_todos"))["todos"]
    assert len(kept) == (0 if offset > 0 else count)


async def todo_chars(kit: Kit, offset: int) -> None:
    content = "x" * (LIMITS["todo_chars_max"][0] + offset)
    end = await result_of(kit, "todo", todos=[{"content": content}])
    assert was_refused(end, "todo_chars_max") is (offset > 0)


TOOL_PLAYS: dict[str, Callable[[Kit, int], Awaitable[None]]] = {
    "patch_chars_max": patch_chars,
    "patch_files_max": patch_files,
    "patched_bytes_max": patched_bytes,
    "web_page_bytes_max": web_page_bytes,
    "web_redirects_max": web_redirects,
    "todos_max": todos,
    "todo_chars_max": todo_chars,
}
