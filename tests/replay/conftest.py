from __future__ import annotations

from tests.daemon.conftest import short_folder

__all__ = ["short_folder"]
