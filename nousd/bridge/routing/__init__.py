"""Routing: the rows of the route table, matching of paths, dispatch to handlers."""
