"""A real browser: pages log in, follow sessions over kills of the daemon, and are kept apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from signal import SIGKILL
from typing import Any, Final, NamedTuple

import pytest

from tests.bridge.chromium import PROGRAM, Chromium, Page, chromium
from tests.bridge.harness import frames_in
from tests.bridge.test_processes import (
    Process,
    ask,
    free_port,
    running,
    token_of,
)
from tests.daemon.process_harness import REPOSITORY
from tests.harness.daemon import WAIT_SECONDS

EXAMPLES: Final = REPOSITORY / "fixtures" / "examples"
KILLS: Final = 3

needs_chromium = pytest.mark.skipif(
    PROGRAM is None, reason="needs Chromium: apt-get install chromium"
)


class _Pages(SimpleHTTPRequestHandler):
    """Serves the examples, and an empty page at /."""

    cookies: list[str]

    def do_GET(self) -> None:
        self.cookies.append(self.headers.get("cookie", ""))
        if self.path != "/":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>empty</title><p>empty")

    def log_message(self, *_words: Any) -> None:
        pass


class Site(NamedTuple):
    """Pages on a port of their own, and the cookies that browsers sent there."""

    origin: str
    cookies: list[str]


@contextmanager
def pages() -> Iterator[Site]:
    cookies: list[str] = []
    handler = type("Pages", (_Pages,), {"cookies": cookies})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=EXAMPLES)) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield Site(f"http://127.0.0.1:{server.server_port}", cookies)
        finally:
            server.shutdown()
            serving.join()


class World:
    """A daemon that can be killed, a browser, and pages of two other ports: only one may ask."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.allowed = stack.enter_context(pages())
        self.other = stack.enter_context(pages())
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self._stack = stack
        self.daemon = self.start()
        self.token = token_of(folder)
        self.browser: Chromium = stack.enter_context(chromium(folder))

    def start(self) -> Process:
        self.daemon = self._stack.enter_context(
            running(
                self.folder,
                "serve",
                f"127.0.0.1:{self.port}",
                NOUSD_HTTP_ORIGINS=self.allowed.origin,
                NOUSD_HTTP_HOSTS="nousd.localhost",
            )
        )
        assert ask(self.port, "/global/health")[0] == 200
        return self.daemon

    def kill(self) -> None:
        self.daemon.stop(SIGKILL)

    def link(self, *more: str) -> str:
        """Return what ``nousctl http login`` prints."""
        done = subprocess.run(
            [
                *(sys.executable, "-m", "nousd.cli.nousctl.main", "http", "login"),
                *("--state-dir", str(self.folder / "state"), "--http", f"127.0.0.1:{self.port}"),
                *more,
            ],
            env={**os.environ, "NOUSD_CONFIG": "", "XDG_CONFIG_HOME": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=True,
        )
        return done.stdout.strip()

    def logged_in(self, base: str = "") -> Page:
        """Return the login page after a link was used."""
        page = self.browser.open(self.link("--page", f"{base or self.base}/auth/login"))
        page.until("document.getElementById('state').textContent.startsWith('Logged in until')")
        return page

    def ids_in_log(self, session: str) -> list[str]:
        """Return the ids of all frames of a session, read with the token from the beginning."""
        request = urllib.request.Request(
            f"{self.base}/event?after=0&sessionID={session}", headers={"x-tandem-token": self.token}
        )
        received, runs = b"", 0
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as reply:
            while runs < KILLS + 1:
                received += reply.readline()
                runs = received.count(b'"session.run.finished"')
            received += reply.readline()
        return [frame.id for frame in frames_in(received) if frame.envelope]


@pytest.fixture
def world(short_folder: Path) -> Iterator[World]:
    (short_folder / "state").mkdir(mode=0o700)
    with ExitStack() as stack:
        yield World(short_folder, stack)


STATE: Final = "document.getElementById('state').textContent"
"""What the page says of itself."""

FOLLOW: Final = """
    const made = await fetch("/session", { method: "POST" });
    session = (await made.json()).id;
    seen = []; opened = 0; finished = 0; closed = false;
    const source = new EventSource(`/event?sessionID=${session}`);
    source.onopen = () => { opened += 1 };
    source.onerror = () => { closed = source.readyState === EventSource.CLOSED };
    source.onmessage = (message) => {
      const frame = JSON.parse(message.data);
      if (frame.envelope) seen.push(message.lastEventId);
      if (frame.type === "session.run.finished") finished += 1;
    };
    await new Promise((done) => { source.addEventListener("open", done, { once: true }) });
    return session;
"""
"""Follows a new session in a page of the server itself."""

PROMPT: Final = """
    const body = JSON.stringify({ parts: [{ type: "text", text: "[[slow 20]] [[say %d]]" }] });
    const headers = { "content-type": "application/json" };
    const reply = await fetch(`/session/${session}/prompt_async`, { method: "POST", headers, body });
    return reply.status;
"""


@needs_chromium
@pytest.mark.slow
def test_an_event_source_misses_nothing_over_three_kills_in_mid_stream(world: World) -> None:
    page = world.logged_in()
    session = page.run(FOLLOW)
    for number in range(1, KILLS + 1):
        assert page.run(PROMPT % 10_000) == 204
        count = page.run("return seen.length")
        page.until(f"seen.length > {count + 20}")
        world.kill()
        world.start()
        page.until(f"opened > {number} && finished === {number}")
    assert page.run(PROMPT % 3) == 204
    page.until(f"finished === {KILLS + 1}")
    assert not page.run("return closed")
    assert page.run("return opened") == KILLS + 1
    seen = page.run("return seen")
    told = world.ids_in_log(session)
    assert seen == told[-len(seen) :]
    assert len(set(seen)) == len(seen) > 20 * KILLS
    assert len(told) - len(seen) <= 1, "what is older than the stream is the session itself"


@needs_chromium
@pytest.mark.slow
def test_the_example_page_logs_in_by_a_link_and_misses_nothing_over_three_kills(
    world: World,
) -> None:
    address = f"{world.allowed.origin}/browser.html?server={world.base}"
    page = world.browser.open(world.link("--page", address))
    page.until(f"{STATE} === `Session ${{session}}.`")
    assert page.run("return location.hash") == ""
    session = page.run("return session")
    for number in range(1, KILLS + 1):
        count = page.run("return seen.length")
        submit(page, "[[slow 20]] [[say 10000]]")
        page.until(f"seen.length > {count + 20} && activeRun !== null")
        world.kill()
        world.start()
        page.until(f"activeRun === null && {STATE} === `Session ${{session}}.`")
        assert page.run("return source.readyState") == 1, number
    submit(page, "[[slow 20]] [[say 3]]")
    page.until("document.getElementById('transcript').innerText.endsWith('word1 word2 word3')")
    page.until("activeRun === null")
    seen = page.run("return seen")
    assert seen == world.ids_in_log(session)
    page.load(address)
    page.until(f"seen.length === {len(seen)}")
    assert page.run("return seen") == seen, "a loaded page shows the session from its beginning"


def submit(page: Page, text: str, button: str = "#prompt button") -> None:
    page.run(
        f"document.getElementById('text').value = {json.dumps(text)};"
        f" document.querySelector('{button}').click()"
    )


@needs_chromium
@pytest.mark.slow
def test_the_example_page_takes_a_token_redirects_a_run_and_logs_out(world: World) -> None:
    page = world.browser.open(f"{world.allowed.origin}/browser.html?server={world.base}")
    page.until("!document.getElementById('login').hidden")
    page.run(
        f"document.getElementById('token').value = '{world.token}';"
        " document.querySelector('#login button').click()"
    )
    page.until(f"{STATE} === `Session ${{session}}.`")
    submit(page, "[[slow 20]] [[say 10000]]")
    page.until("activeRun !== null")
    submit(page, "again")
    page.until(f"{STATE}.startsWith('A run is active')")
    submit(page, "[[text <b>Redirected.</b>]]", "#steer")
    page.until("document.getElementById('transcript').innerText.endsWith('<b>Redirected.</b>')")
    page.run("document.getElementById('logout').click()")
    page.until(f"{STATE} === 'Logged out.'")
    page.load(f"{world.allowed.origin}/browser.html?server={world.base}")
    page.until(f"{STATE} .startsWith('Please log in')")


@needs_chromium
@pytest.mark.slow
def test_a_link_opens_the_documentation_once_and_its_secret_stays_in_the_browser(
    world: World,
) -> None:
    link = world.link()
    assert link.startswith(f"{world.base}/auth/login#")
    page = world.browser.open(f"{world.base}/docs")
    assert "nousctl http login" in page.run("return document.body.innerText")
    page = world.browser.open(link)
    page.until(f"{STATE}.startsWith('Logged in until')")
    assert page.run("return location.href") == f"{world.base}/auth/login"
    assert page.run("return document.cookie") == "", "no script sees the cookie"
    page.load(f"{world.base}/docs")
    assert page.run("return document.title") == "nousd over HTTP"
    page.run("document.querySelector('a[href=\"/openapi.json\"]').click()")
    page.until("location.pathname === '/openapi.json' && document.body.innerText.includes('paths')")
    page = world.browser.open(link)
    page.until(f"{STATE}.startsWith('the link is used or too old')")
    assert link.partition("#")[2] not in world.daemon.log.read_text()


ATTACK: Final = """
    const got = [];
    const server = "%s";
    const ways = [["GET", "cors"], ["GET", "no-cors"], ["POST", "cors"], ["POST", "no-cors"]];
    for (const [method, mode] of ways) {
      try {
        const reply = await fetch(server + "/session", { method, mode, credentials: "include" });
        if (reply.type !== "opaque") got.push([method, mode, await reply.text()]);
      } catch (error) { if (!(error instanceof TypeError)) throw error }
    }
    const source = new EventSource(server + "/event?after=0", { withCredentials: true });
    source.onmessage = (message) => got.push(message.data);
    await new Promise((done) => { source.onerror = done });
    if (source.readyState !== EventSource.CLOSED) got.push("the stream is not refused");
    const element = (name, key, url) => new Promise((done) => {
      const made = document.createElement(name);
      made[key] = url;
      made.onload = () => done(name === "iframe" ? made.contentDocument : name);
      made.onerror = () => done(null);
      document.body.append(made);
    });
    got.push(await element("script", "src", server + "/openapi.json"));
    got.push(await element("iframe", "src", server + "/docs"));
    return got.filter((each) => each !== null);
"""


@needs_chromium
@pytest.mark.slow
@pytest.mark.behaviour("http_cookies_need_an_origin")
def test_a_page_of_another_local_port_gets_nothing(world: World) -> None:
    world.logged_in()
    address = f"{world.allowed.origin}/browser.html?server={world.base}"
    page = world.browser.open(world.link("--page", address))
    page.until(f"{STATE} === `Session ${{session}}.`")
    before = ask(world.port, "/session?scope=global", world.token)[1]
    other = world.browser.open(world.other.origin)
    assert world.other.cookies[0].count(f"nousd-session-{world.port}") == 2, (
        "a browser sends cookies to every port"
    )
    assert other.run(ATTACK % world.base) == []
    assert ask(world.port, "/session?scope=global", world.token)[1] == before
    with urllib.request.urlopen(
        urllib.request.Request(f"{world.base}/metrics", headers={"x-tandem-token": world.token})
    ) as reply:
        metrics = reply.read().decode()
    refused = sum(
        float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith("nousd_http_requests_total{") and 'status="403"' in line
    )
    assert refused >= 6, "each of the requests above reached the server"


@needs_chromium
@pytest.mark.slow
def test_a_host_name_of_its_own_keeps_the_cookie_from_servers_of_other_ports(world: World) -> None:
    page = world.logged_in(f"http://nousd.localhost:{world.port}")
    assert page.run("return (await fetch('/session')).status") == 200
    world.browser.open(world.other.origin)
    assert set(world.other.cookies) == {""}
