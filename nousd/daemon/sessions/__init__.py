"""Sessions in memory: the registry, live sessions, history, transcripts."""
