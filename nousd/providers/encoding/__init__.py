"""What the dialects share in encoding: attachments, sampling, tool names and calls."""
