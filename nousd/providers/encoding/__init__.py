"""Encoding that the dialects share: attachments, sampling, tool names and calls."""
