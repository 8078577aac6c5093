"""An example body for each route that takes one, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_SAYS: Final = {"parts": [{"type": "text", "text": "What is in this folder?"}]}

_SHOWS: Final = {
    "parts": [
        {"type": "text", "text": "What does this say?"},
        {"type": "file", "mime": "text/plain", "filename": "a.txt", "url": "data:text/plain,note"},
    ],
    "toolMode": "auto",
    "max_tokens": 4096,
}

EXAMPLES: Final[Mapping[tuple[str, str], Any]] = {
    ("POST", "/session"): {"title": "A first look", "directory": "."},
    ("PATCH", "/session/{id}"): {"title": "A second look", "archived": False},
    ("POST", "/session/{id}/message"): _SAYS,
    ("POST", "/session/{id}/prompt_async"): _SHOWS,
    ("POST", "/session/{id}/prompt_sync"): _SAYS,
    ("POST", "/session/{id}/attach"): {"target_workspace": "/home/me/project"},
    ("POST", "/session/{id}/workspace/override"): {"ttl_seconds": 900},
    ("POST", "/permission/{request_id}/reply"): {"reply": "once"},
    ("POST", "/sessions/{id}/tools/{request_id}/approve"): {},
    ("POST", "/sessions/{id}/tools/{request_id}/deny"): {"reason": "Not this file."},
    ("POST", "/question/{question_id}/reply"): {"answer": "blue"},
    ("POST", "/question/{question_id}/reject"): {"reason": "Decide for yourself."},
    ("POST", "/sessions/{id}/questions/{question_id}/answer"): {"answer": "blue"},
}
"""method and path -> a body."""
