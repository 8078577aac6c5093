"""What follows from the code and is kept beside it: schemas, tables and pages of protocol/."""
