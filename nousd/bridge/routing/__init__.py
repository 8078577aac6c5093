"""From a request to its route and back: rows, paths, dispatch, replies."""
