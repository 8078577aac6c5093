"""Tools of other programs, over the Model Context Protocol; see ``server``."""
