"""A route as a row of the route table, read by the server and by the OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from nousd.bridge.access.callers import Caller
from nousd.bridge.access.credentials import Credentials
from nousd.bridge.access.work_rate import WorkRate
from nousd.bridge.http.bodies import Bodies
from nousd.bridge.metrics.meters import Meters
from nousd.bridge.stream.hub import Hub
from nousd.bridge.stream.responders import Responders
from nousd.client.client import Client
from nousd.views.event_view import EventView
from nousd.views.tandem.events import TANDEM

Method = Literal["GET", "POST", "PATCH", "DELETE"]


class Services(NamedTuple):
    """The services that handlers use.

    Args:
        daemon: the client through which commands are sent.
        hub: the daemon's events, for streams.
        responders: the clients that may answer an approval request or a question.
        meters: the counters behind ``/metrics``.
        bodies: the memory budget for large request bodies.
        credentials: opens and ends browser sessions.
        work_rate: the allowances of clients for starting work.
        rows: the whole route table, for the routes that describe it.
    """

    daemon: Client
    hub: Hub
    responders: Responders
    meters: Meters
    bodies: Bodies
    credentials: Credentials
    work_rate: WorkRate
    rows: tuple[Row, ...]


CLIENT_NAME: Final = "x-tandem-client-id"
"""The header with the name that a client gives itself."""


class Call(NamedTuple):
    """One request to a route.

    Args:
        path: the parameters of the path.
        query: an instance of the row's ``query``.
        body: an instance of the row's ``body``.
        caller: the kind of client that sent the request.
        request: the request itself, for headers.
        view: the ``view`` of the row.
    """

    services: Services
    path: Mapping[str, str]
    query: Any
    body: Any
    caller: Caller
    request: Request
    view: EventView

    @property
    def daemon(self) -> Client:
        """The client through which commands are sent."""
        return self.services.daemon

    @property
    def hub(self) -> Hub:
        """The daemon's events."""
        return self.services.hub

    def header(self, name: str) -> str | None:
        """Return the value of a header; None if it is missing or empty."""
        return self.request.headers.get(name) or None

    @property
    def client_name(self) -> str | None:
        """The name that the client gives itself; None if it gives none."""
        return self.header(CLIENT_NAME)


Handler = Callable[[Call], Awaitable[Response]]

_STARTS_WORK: Final = frozenset({"prompt", "compact_session"})
"""Commands that call a model."""

_AS_WE_DO: Final[Mapping[str, str]] = {"client_id": CLIENT_NAME}

_OF_SESSIONS: Final = re.compile(r"/session(/|$)")


class PrometheusText:
    """The marker, in ``Row.replies``, of a reply in a format of Prometheus."""


class Row(NamedTuple):
    """One route. The decorators of ``Routes`` make it from a handler and its facts.

    Args:
        summary: the first line of the handler's docstring.
        sends: the commands that the handler sends, or ``subscribe``.
        replies: status -> the type of the reply's body; None for no body, ``str`` for a stream of
            events, ``bytes`` for a page, ``PrometheusText`` for metrics. Refusals are not listed:
            ``bridge.openapi.document.refusals`` derives them from the row.
        query, body: the structs of the query and the body. If ``body`` is None, the body is not read; a
            request without a body counts as an empty object.
        aliases: other paths of the same route; ``Routes`` adds those below ``/api``.
        is_public: no token is needed.
        streams: the reply is a stream of events if the client accepts one.
        view: renders the events of the route's streams.
        spells: field of a command -> its name in a request; "" if its parts are fields of the request.
    """

    method: Method
    path: str
    handler: Handler
    summary: str
    sends: tuple[str, ...]
    replies: Mapping[int, Any]
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    aliases: tuple[str, ...] = ()
    is_public: bool = False
    streams: bool = False
    view: EventView = TANDEM
    spells: Mapping[str, str] = _AS_WE_DO

    @property
    def starts_work(self) -> bool:
        """True if a request counts against the rate of its client."""
        return not _STARTS_WORK.isdisjoint(self.sends)


class Routes(list[Row]):
    """The routes of one module, in the order of their handlers. Each method is a decorator of handlers.

    Every path of ``/session`` also exists below ``/api``.
    """

    def get(self, path: str, **facts: Any) -> Callable[[Handler], Handler]:
        """Route GET requests of a path to the handler. ``facts`` are fields of ``Row``."""
        return self._add("GET", path, facts)

    def post(self, path: str, **facts: Any) -> Callable[[Handler], Handler]:
        """Route POST requests; see ``get``."""
        return self._add("POST", path, facts)

    def patch(self, path: str, **facts: Any) -> Callable[[Handler], Handler]:
        """Route PATCH requests; see ``get``."""
        return self._add("PATCH", path, facts)

    def delete(self, path: str, **facts: Any) -> Callable[[Handler], Handler]:
        """Route DELETE requests; see ``get``."""
        return self._add("DELETE", path, facts)

    def _add(
        self, method: Method, path: str, facts: Mapping[str, Any]
    ) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            summary = (handler.__doc__ or "").partition("\n")[0]
            row = Row(method, path, handler, summary, **facts)
            names = (path, *row.aliases)
            under_api = (f"/api{name}" for name in names if _OF_SESSIONS.match(name))
            self.append(row._replace(aliases=(*row.aliases, *under_api)))
            return handler

        return add
