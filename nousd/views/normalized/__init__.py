"""Runs as the 19 event types that wrappers of agent runtimes share: see protocol/normalized.md.

``payloads`` has the structs, ``thread`` the state of a run at a position in the log, ``fold`` the rules
that turn the next event into frames, ``frames`` the envelope and the numbers of frames, ``transcript``
the messages that follow from frames.
"""
