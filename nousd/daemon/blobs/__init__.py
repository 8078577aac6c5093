"""Attachments, uploads and spooled outputs on their way into the store."""
