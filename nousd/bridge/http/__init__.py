"""The HTTP server: addresses, connections, request bodies."""
