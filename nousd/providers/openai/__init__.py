"""The dialect of Chat Completions."""
