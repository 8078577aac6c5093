"""Facts about models: the catalog, names, context windows, prices."""
