"""Access to files: path sandbox, walks without following links, text files, globs."""
