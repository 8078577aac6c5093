"""The metrics of the daemon and of the bridge, for Prometheus."""

from __future__ import annotations

import logging
from typing import Final

import anyio
from starlette.responses import Response

from nousd.bridge.routing.route import Call, PrometheusText, Routes
from nousd.client.client import Client
from nousd.errors import ClientError
from nousd.wire.commands import GetMetrics
from nousd.wire.responses import Metrics

routes: Final = Routes()

PATIENCE_SECONDS: Final = 5.0
"""How long the daemon may take to answer: half of Prometheus's default timeout of a scrape."""

_logger: Final = logging.getLogger(__name__)


@routes.get("/metrics", sends=("get_metrics",), replies={200: PrometheusText})
async def _metrics(call: Call) -> Response:
    """Read the metrics of the daemon and of this server, for Prometheus.

    If the daemon does not answer, the reply has only the metrics of the bridge.
    """
    figures = await _daemon_figures(call.daemon)
    accept = call.header("accept") or ""
    meters = call.services.meters
    # Formatting thousands of lines would hold up the event loop for too long.
    exposition = await anyio.to_thread.run_sync(meters.expose, figures, accept)
    return Response(exposition.data, headers={"content-type": exposition.content_type})


async def _daemon_figures(daemon: Client) -> Metrics | None:
    try:
        with anyio.fail_after(PATIENCE_SECONDS):
            return await daemon.ask(GetMetrics())
    except (ClientError, TimeoutError) as error:
        _logger.info("the daemon's figures are missing: %s", error)
        return None
