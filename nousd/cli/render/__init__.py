"""Responses as text for people."""
