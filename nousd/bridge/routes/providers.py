"""Which models there are."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from nousd.bridge.replies import json_reply
from nousd.bridge.table import Call, Row
from nousd.views.tandem.providers import Catalog, catalog
from nousd.wire.commands import ListModels


async def _providers(call: Call) -> Response:
    return json_reply(catalog(await call.daemon.ask(ListModels())))


ROWS: Final = (
    Row(
        method="GET",
        path="/provider",
        handler=_providers,
        summary="Lists providers and their models.",
        sends=("list_models",),
        replies={200: Catalog},
    ),
)
