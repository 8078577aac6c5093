"""``nousctl chat``: the interactive client."""
