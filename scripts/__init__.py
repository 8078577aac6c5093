"""Programs for developers, and the packages that they are made of."""
