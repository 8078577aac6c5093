"""Removes secrets from texts that leave nousd: known ones, and patterns.

The daemon's diagnostic log and tool output lose only known values (``known``): anything else in them
belongs to the user. A support bundle, which is handed to others, also loses what looks like a secret
(``rules``), and rather too much than too little. ``redactor.Redactor`` does both.
"""
