"""The versions of the SQLite schema, one file each: the statements that upgrade the previous version.

The meaning of a table or column is documented once, in the version that adds it. Never change a released
version: add a new one, and list it in ``nousd.store.sqlite.migrations``.
"""
