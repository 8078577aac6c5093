"""The health check. It needs no token, so it reveals little."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.responses import Response

import nousd
from nousd.bridge.replies import json_reply
from nousd.bridge.routing.route import Call, Routes

routes: Final = Routes()


class Health(msgspec.Struct, frozen=True):
    """``healthy`` and ``ready`` are true while the server is connected to the daemon. A terminal client
    shows ``version`` and ``mode`` in its status line.
    """

    healthy: bool
    ready: bool
    version: str
    mode: str


@routes.get("/global/health", sends=(), replies={200: Health}, is_public=True)
async def _health(call: Call) -> Response:
    """Check that the server responds and is connected to the daemon."""
    ready = call.hub.is_connected
    return json_reply(Health(ready, ready, nousd.__version__, "nousd"))
