"""Tools of other programs, which speak the Model Context Protocol; see ``server``."""
