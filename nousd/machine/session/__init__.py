"""Session state as a fold over events: queues, run lifecycle, decisions on commands."""
