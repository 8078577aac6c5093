"""Who may come in: Host, Origin, token, CORS, known clients."""
