"""Opening and reading a log without changing it: files, lines, tables and pages, damaged ones too."""
