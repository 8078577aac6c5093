"""Files generated from the code and kept beside it: schemas, tables and pages of protocol/."""
