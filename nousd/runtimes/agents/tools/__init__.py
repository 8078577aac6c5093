"""Our tools and the program's own, towards an agent: how they travel, and which call is which."""
