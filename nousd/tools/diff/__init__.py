"""Exact parsing and application of unified diffs."""
