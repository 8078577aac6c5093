"""What follows from the code, and is kept beside it: schemas, and the tables of protocol/*.md."""
