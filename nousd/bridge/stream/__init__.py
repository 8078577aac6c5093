"""Server-sent events: the hub, the rendering of events, and the clients that answer requests."""
