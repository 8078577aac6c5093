"""The settings, and which of four sources decides each."""
