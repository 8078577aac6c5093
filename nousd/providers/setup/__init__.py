"""Creates providers from settings: keys, the registry, automatic choice."""
