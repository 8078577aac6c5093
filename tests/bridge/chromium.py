"""A headless Chromium that runs scripts in pages, driven over two pipes (no library is needed).

::

    with chromium(folder) as browser:
        page = browser.open("http://127.0.0.1:8000/")
        assert page.run("return document.title") == "A page"
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

PROGRAM: Final = shutil.which("chromium")
WAIT_SECONDS: Final = 120.0
"""A limit for a busy machine; on an idle one everything takes a small part of that."""

_FLAGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--no-proxy-server", "--remote-debugging-pipe"),
)
_READS_FROM, _WRITES_TO = 3, 4
"""The descriptors of ``--remote-debugging-pipe``."""


class ScriptFailed(Exception):
    """A script in a page raised an error."""


class Page:
    """A tab."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser = browser
        self._session = session

    def load(self, url: str) -> None:
        """Load a page, and wait until it is complete."""
        self._browser.call("Page.navigate", {"url": url}, self._session)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """Return what the body of an async function returns."""
        reply = self._browser.call(
            "Runtime.evaluate",
            {
                "expression": f"(async () => {{ {script} }})()",
                "awaitPromise": True,
                "returnByValue": True,
            },
            self._session,
        )
        if "exceptionDetails" in reply:
            raise ScriptFailed(reply["exceptionDetails"])
        return reply["result"].get("value")

    def until(self, condition: str) -> Any:
        """Wait until an expression is true, and return it. A navigation may begin meanwhile."""
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            try:
                if value := self.run(f"return ({condition})"):
                    return value
            except (ScriptFailed, CallFailed):
                pass
            select.select([], [], [], 0.05)
        shown = self.run("return document.body.innerText")
        raise AssertionError(f"{condition} never was true; the page shows {shown!r}")


class CallFailed(Exception):
    """The browser refused a call."""


class Chromium:
    """A running browser."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to_browser = to_browser
        self._from_browser = from_browser
        self._received = b""
        self._last_id = 0

    def open(self, url: str) -> Page:
        """Open a tab, and wait until its page is complete."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = Page(self, attached["sessionId"])
        page.load(url)
        return page

    def call(self, method: str, params: dict[str, Any], session: str | None = None) -> Any:
        """Call a method of the DevTools protocol and return its result."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + WAIT_SECONDS
        while True:
            reply = self._next(end)
            if reply.get("id") == self._last_id:
                if "error" in reply:
                    raise CallFailed(reply["error"])
                return reply["result"]

    def _next(self, end: float) -> dict[str, Any]:
        """Return the next message; events are messages, too."""
        while b"\0" not in self._received:
            left = end - time.monotonic()
            ready, _, _ = select.select([self._from_browser], [], [], max(0.0, left))
            assert ready, "the browser does not answer"
            received = os.read(self._from_browser, 1 << 20)
            assert received, "the browser has ended"
            self._received += received
        message, _, self._received = self._received.partition(b"\0")
        return dict(json.loads(message))


@contextmanager
def chromium(folder: Path) -> Iterator[Chromium]:
    """Run a browser with a profile of its own until the end of the block."""
    assert PROGRAM is not None
    their_input, to_browser = os.pipe()
    from_browser, their_output = os.pipe()
    # A shell gives the pipes the numbers that the browser wants.
    renumber = f'exec "$@" {_READS_FROM}<&{their_input} {_WRITES_TO}>&{their_output}'
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", renumber, "bash", PROGRAM, *_FLAGS, f"--user-data-dir={folder}/profile"],
            pass_fds=(their_input, their_output),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "HOME": str(folder)},
            start_new_session=True,
        )
    os.close(their_input)
    os.close(their_output)
    try:
        yield Chromium(to_browser, from_browser)
    finally:
        os.close(to_browser)
        os.close(from_browser)
        try:
            process.wait(10)  # it ends with its pipes
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
