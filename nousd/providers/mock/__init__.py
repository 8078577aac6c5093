"""The built-in model, which answers deterministically and follows directives."""
