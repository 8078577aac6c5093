"""Fetch a web page: allowed addresses, bounded requests, HTML as text."""
