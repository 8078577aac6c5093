"""``nousctl``: the verbs of the client program."""
