"""From events to the rows that the store writes."""
