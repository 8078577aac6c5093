"""Mutated conversations on whole connections, and what must hold whatever is sent."""
