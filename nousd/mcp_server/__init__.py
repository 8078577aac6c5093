"""The daemon's tools, served to clients of the Model Context Protocol; see ``host``."""
