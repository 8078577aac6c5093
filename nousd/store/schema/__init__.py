"""The versions of the SQLite schema, a file for each: the statements that make it of the one before.

What a table or a column means is said once, beside the version that adds it. Never change a version that
was released: add the next one, and list it in ``nousd.store.sqlite.migrations``.
"""
