from __future__ import annotations

from tests.daemon.conftest import short_folder, socket_path

__all__ = ["short_folder", "socket_path"]
