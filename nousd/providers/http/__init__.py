"""HTTP that the dialects share: connections, SSE, errors, coalesced deltas."""
