"""nousd: a headless agent runtime daemon that speaks NDJSON v1 over Unix sockets."""

__version__ = "0.1.0"
