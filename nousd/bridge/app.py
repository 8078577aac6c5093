"""The bridge as an ASGI application: the routes behind the gate."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from nousd.bridge.access.callers import ConnectionCloser
from nousd.bridge.access.gate import AccessPolicy, Gate
from nousd.bridge.metrics.requests import ROUTE, MeteredApp
from nousd.bridge.replies import (
    INTERNAL,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    HttpError,
    error_reply,
)
from nousd.bridge.routing.dispatch import answer_request
from nousd.bridge.routing.paths import PathTable
from nousd.bridge.routing.route import Row, Services


def make_app(services: Services, policy: AccessPolicy, apps: Mapping[str, ASGIApp]) -> ASGIApp:
    """Return the application that ``nousd.bridge.http.server`` serves.

    Args:
        apps: path -> a separate application that serves this path, such as MCP.
    """
    routes = ServerErrorMiddleware(_Routes(services, apps), handler=_fault)
    return MeteredApp(ConnectionCloser(Gate(routes, policy)), services.meters.requests, apps)


class _Routes:
    """The ASGI application that passes a request to the handler of its row.

    Paths match exactly. There are no redirects, such as for a trailing slash: a client would have to
    send its body again.
    """

    def __init__(self, services: Services, apps: Mapping[str, ASGIApp]) -> None:
        by_path: dict[str, dict[str, Row]] = {}
        for row in services.rows:
            for path in (row.path, *row.aliases):
                by_path.setdefault(path, {})[row.method] = row
        self._services = services
        self._rows = PathTable(by_path)
        self._apps = apps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._apps.get(scope["path"])
        if app is None:
            app = await self._response(Request(scope, receive, send))
        await app(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        found = self._rows.find(request.scope["path"])
        if found is None:
            return error_reply(HttpError(NOT_FOUND, "there is no such route"))
        row = found.value.get("GET" if request.method == "HEAD" else request.method)
        if row is None:
            return error_reply(_not_allowed(found.value))
        request.scope[ROUTE] = row.path
        request.scope["path_params"] = found.named
        return await answer_request(row, self._services, request)


def _not_allowed(by_method: Mapping[str, Row]) -> HttpError:
    methods = [*by_method, *(["HEAD"] if "GET" in by_method else [])]
    headers = {"allow": ", ".join(methods)}
    return HttpError(METHOD_NOT_ALLOWED, "not with this method", headers=headers)


async def _fault(_request: Request, _error: Exception) -> Response:
    return error_reply(HttpError(INTERNAL, "a fault of the bridge; its log has the details"))
