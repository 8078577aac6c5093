"""The store in one SQLite file: a writer thread, readers, and the event loop between them."""
