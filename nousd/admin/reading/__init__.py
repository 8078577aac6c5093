"""Opens and reads a log without changing it: files, lines, tables and pages, damaged ones too."""
