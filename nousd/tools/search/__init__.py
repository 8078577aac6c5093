"""The process that carries out ``find`` and ``grep``."""
