"""Builds model inputs from transcripts: compiler, compaction, token estimates."""
