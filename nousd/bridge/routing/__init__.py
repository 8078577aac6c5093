"""Routing: the rows of the table, the match of paths, the dispatch to handlers."""
