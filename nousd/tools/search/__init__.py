"""The process that runs ``find`` and ``grep``."""
