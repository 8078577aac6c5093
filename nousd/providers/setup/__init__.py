"""From settings to providers: keys, the registry, automatic choice."""
