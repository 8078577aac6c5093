"""Where the programs of tools run so that they can touch nothing but what they are meant to."""
