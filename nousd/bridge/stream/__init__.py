"""Server-sent events: the shared window of frames and its readers."""
