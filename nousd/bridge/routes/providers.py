"""The providers and their models."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.responses import Response

from nousd.bridge.replies import json_reply
from nousd.bridge.routing.route import Call, Routes
from nousd.views.tandem.providers import Catalog, render_catalog
from nousd.wire.commands import ListModels

routes: Final = Routes()


@routes.get("/provider", sends=("list_models",), replies={200: Catalog})
async def _providers(call: Call) -> Response:
    """List providers and their models."""
    listing = await call.daemon.ask(ListModels())
    if listing.truncated is True:
        answers = [
            await call.daemon.ask(ListModels(provider=provider.provider))
            for provider in listing.providers
        ]
        models = tuple(model for answer in answers for model in answer.models)
        listing = msgspec.structs.replace(listing, models=models)
    return json_reply(render_catalog(listing))
