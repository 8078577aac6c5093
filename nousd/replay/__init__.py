"""A stored run, played again without any model or tool; and runs with their raw streams as fixtures."""
