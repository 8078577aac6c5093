"""``nousd bundle``: the support bundle."""
