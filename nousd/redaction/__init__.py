"""Removes secrets from texts that leave nousd: known ones, and patterns.

There are two ways, which go together:

- A ``redactor.Redactor`` knows the daemon's own secrets by their values (``known``). The daemon's
  log, and what tools say, are redacted by these alone: anything else in them belongs to the user.
- Given ``rules.RULES`` as well, it also replaces what merely looks like a secret, and rather too
  much than too little. That is for what is handed to others, such as a support bundle.
"""
