"""The settings, each resolved from four sources in order of precedence."""
