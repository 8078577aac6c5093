"""The bridge as an ASGI application: the rows of the table behind the gate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from nousd.bridge.callers import ClosingConnections
from nousd.bridge.gate import Gate, Safety
from nousd.bridge.handling import answered
from nousd.bridge.metrics.requests import ROUTE, Measured
from nousd.bridge.replies import (
    INTERNAL,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    HttpError,
    error_reply,
)
from nousd.bridge.routes import ROWS
from nousd.bridge.table import Row, Services

_NO_APPS: Final[Mapping[str, ASGIApp]] = MappingProxyType({})


def make_app(
    services: Services,
    safety: Safety,
    rows: Iterable[Row] = ROWS,
    apps: Mapping[str, ASGIApp] = _NO_APPS,
) -> ASGIApp:
    """Returns what ``nousd.bridge.server`` serves.

    Args:
        apps: path -> what answers there in a language of its own.
    """
    ours: dict[str, dict[str, Row]] = {}
    for row in rows:
        for path in (row.path, *row.aliases):
            ours.setdefault(path, {})[row.method] = row
    app = Starlette(
        routes=[
            *(_route(path, by_method, services) for path, by_method in ours.items()),
            *(Route(path, app) for path, app in apps.items()),
        ],
        exception_handlers={404: _not_found, 405: _not_allowed, 500: _fault},
    )
    # A path is the one that the document has: a body sent anywhere else would have to be sent again.
    app.router.redirect_slashes = False
    return Measured(ClosingConnections(Gate(app, safety)), services.meters.requests, apps)


def _route(path: str, by_method: Mapping[str, Row], services: Services) -> Route:
    """Returns one route for all methods of a path, so that a wrong method is told all of them."""

    async def endpoint(request: Request) -> Response:
        row = by_method["GET" if request.method == "HEAD" else request.method]
        request.scope[ROUTE] = row.path
        return await answered(row, services, request)

    return Route(path, endpoint, methods=list(by_method))


async def _not_found(_request: Request, _error: Exception) -> Response:
    return error_reply(HttpError(NOT_FOUND, "there is no such route"))


async def _not_allowed(_request: Request, error: Exception) -> Response:
    headers = error.headers if isinstance(error, HTTPException) else None
    return error_reply(HttpError(METHOD_NOT_ALLOWED, "not with this method", headers=headers))


async def _fault(_request: Request, _error: Exception) -> Response:
    return error_reply(HttpError(INTERNAL, "a fault of the bridge; its log has the details"))
