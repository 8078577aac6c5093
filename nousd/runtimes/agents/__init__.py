"""Runtimes that drive external agent programs: the adapters and their shared code."""
