"""Unified diffs: parsed exactly and applied exactly."""
