"""The calls of a driven client and their outcomes, one JSON line each, for the test that started it.

A driver is a program of its own: the client that it drives has a loop of its own, and warnings of its
own. ``Talk`` looks methods up by their dotted names, so that the test can compare what was driven with
what the package has.
"""

from __future__ import annotations

import inspect
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
from httpx_sse import SSEError

CALL_SECONDS = 90

REFUSALS = (httpx.HTTPStatusError, SSEError)
"""The errors for a missing route: of a response, and of a stream."""


def tell(label: str, method: str, **outcome: Any) -> None:
    """Print a line with the outcome of a call of that method.

    Args:
        outcome: ``result``, ``refused``, or ``unsent`` where the client did not take the arguments.
    """
    line = {"label": label, "method": method, **outcome}
    sys.stdout.write(json.dumps(line, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return vars(value)


def refusal(error: httpx.HTTPStatusError | SSEError) -> dict[str, Any]:
    """Return the status and body of an error; for a stream only that there is none."""
    if isinstance(error, SSEError):
        return {"stream": False}
    return {"status": error.response.status_code, "body": error.response.json()}


def methods(client: Any) -> Iterator[tuple[str, Any]]:
    """Yield every public method of a client and of its namespaces, by its dotted name."""
    for name, value in inspect.getmembers(client):
        if name.startswith("_"):
            continue
        if inspect.ismethod(value):
            yield name, value
            continue
        for inner, method in inspect.getmembers(value, inspect.ismethod):
            if not inner.startswith("_"):
                yield f"{name}.{inner}", method


def made_up(method: Any) -> dict[str, Any]:
    """Return an argument for each parameter that a method must have."""
    needed = [
        parameter
        for parameter in inspect.signature(method).parameters.values()
        if parameter.default is parameter.empty
    ]
    return {parameter.name: _made_up(str(parameter.annotation)) for parameter in needed}


def _made_up(annotation: str) -> Any:
    made = {"str": "x", "int": 1, "bool": False, "list": [], "Literal": "x"}
    an_object = {"destination_id": "x", "route_id": "x"}
    return next((made[type] for type in made if annotation.startswith(type)), an_object)


def found(client: Any, dotted: str) -> Any:
    """Return the method of that name."""
    for name in dotted.split("."):
        client = getattr(client, name)
    return client


def until(is_there: Callable[[], Any]) -> None:
    """Poll until ``is_there`` returns something true."""
    end = time.monotonic() + CALL_SECONDS
    while not is_there():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)  # polls leave the processor to what they wait for
