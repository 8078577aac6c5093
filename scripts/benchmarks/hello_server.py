"""A bare hypercorn on trio that says hello to any request, and nothing else."""

from __future__ import annotations

from functools import partial

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope

_BODY = b'{"hello":"world"}'
_HEADERS = [
    (b"content-type", b"application/json"),
    (b"content-length", str(len(_BODY)).encode()),
]


async def _hello(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    if scope["type"] != "http":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await trio.sleep_forever()
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": _BODY, "more_body": False})


async def main() -> None:
    """Serves until it is killed; prints its port."""
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.accesslog = None
    config.errorlog = None
    async with trio.open_nursery() as nursery:
        (bound,) = await nursery.start(partial(serve, _hello, config, mode="asgi"))
        print(bound.rpartition(":")[2], flush=True)


if __name__ == "__main__":
    trio.run(main)
