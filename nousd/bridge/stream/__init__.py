"""Server-sent events: the hub of events, their rendering, and the readers that answer requests."""
