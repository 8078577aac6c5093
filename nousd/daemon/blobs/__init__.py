"""Attachments and uploads on their way into the store."""
