"""The two programs: ``nousd`` (the daemon) and ``nousctl`` (its client). Arguments in, text out."""
