"""Metrics of HTTP: requests by route and status, open streams, bytes, durations."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nousd.bridge.metrics.labels import OTHER

ROUTE: Final = "nousd.route"
"""The scope key that holds the path of the request's route."""

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30)

_CUT_OFF: Final = "none"
"""The status of a request whose client disconnected before the reply."""


class RequestCounters:
    """The counters of HTTP requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.ended = Counter(
            "nousd_http_requests",
            "Requests, by route and status; the route of a refusal before routing is other.",
            ("method", "route", "status"),
            registry=registry,
        )
        self.seconds = Histogram(
            "nousd_http_request_seconds",
            "Time from a request to the end of its reply, or to its start for a stream.",
            ("route",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.streams = Gauge(
            "nousd_http_streams",
            "Open streams of events.",
            ("route",),
            registry=registry,
        )
        self.received = Counter(
            "nousd_http_received_bytes", "Bytes of request bodies.", registry=registry
        )
        self.sent = Counter("nousd_http_sent_bytes", "Bytes of reply bodies.", registry=registry)


class MeteredApp:
    """The outermost ASGI application; it measures every request.

    Args:
        paths: paths that count as routes although they are not in the route table.
    """

    def __init__(self, app: ASGIApp, requests: RequestCounters, paths: Iterable[str] = ()) -> None:
        self._app = app
        self._requests = requests
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = _Request(self._requests, scope, receive, send, self._paths)
        try:
            await self._app(scope, request.receive, request.send)
        finally:
            request.end()


class _Request:
    """The measurements of one request."""

    def __init__(
        self,
        requests: RequestCounters,
        scope: Scope,
        receive: Receive,
        send: Send,
        paths: frozenset[str],
    ) -> None:
        self._requests = requests
        self._scope = scope
        self._receive = receive
        self._send = send
        self._paths = paths
        self._begun = perf_counter()
        self._status = _CUT_OFF
        self._is_stream = False

    @property
    def _route(self) -> str:
        path = self._scope["path"]
        route: str = self._scope.get(ROUTE, path if path in self._paths else OTHER)
        return route

    async def receive(self) -> Message:
        """Receive a message, and count the bytes of the request."""
        message = await self._receive()
        self._requests.received.inc(len(message.get("body", b"")))
        return message

    async def send(self, message: Message) -> None:
        """Send a message, and count the bytes of the reply."""
        if message["type"] == "http.response.start":
            self._start(message)
        elif message["type"] == "http.response.body":
            self._requests.sent.inc(len(message.get("body", b"")))
        await self._send(message)

    def _start(self, message: Message) -> None:
        self._status = str(message["status"])
        content_type = Headers(raw=message["headers"]).get("content-type", "")
        if content_type.startswith("text/event-stream"):
            self._is_stream = True
            self._observe_seconds()
            self._requests.streams.labels(self._route).inc()

    def end(self) -> None:
        """Count the request."""
        method = self._scope["method"]
        labels = (method if method in _METHODS else OTHER, self._route, self._status)
        self._requests.ended.labels(*labels).inc()
        if self._is_stream:
            self._requests.streams.labels(self._route).dec()
        else:
            self._observe_seconds()

    def _observe_seconds(self) -> None:
        self._requests.seconds.labels(self._route).observe(perf_counter() - self._begun)
