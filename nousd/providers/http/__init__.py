"""What the dialects share over HTTP: connections, SSE, errors, coalesced deltas."""
