"""The health check, the one route that needs no token; so it says little."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.responses import Response

import nousd
from nousd.bridge.replies import json_reply
from nousd.bridge.routing.route import Call, Routes

routes: Final = Routes()


class Health(msgspec.Struct, frozen=True):
    """``healthy`` and ``ready`` say that the daemon is there. A terminal client shows ``version`` and
    ``mode`` in its status line.
    """

    healthy: bool
    ready: bool
    version: str
    mode: str


@routes.get("/global/health", sends=(), replies={200: Health}, is_public=True)
async def _health(call: Call) -> Response:
    """Check that the server and its daemon are there."""
    ready = call.hub.is_connected
    return json_reply(Health(ready, ready, nousd.__version__, "nousd"))
