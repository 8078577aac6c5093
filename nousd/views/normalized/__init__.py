"""Runs as the 19 event types that wrappers of agent runtimes share: see protocol/normalized.md.

``payloads`` has the words, ``thread`` what is known of a run at a position of the log, ``fold`` the
rules that turn the next event into frames, ``frames`` the envelope and the numbers, ``transcript`` the
messages that follow from frames.
"""
