"""Kills of a daemon under load, and the record that is compared with its log afterwards."""
