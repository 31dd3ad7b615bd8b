"""The sections of a report, as plain values: words, relations and tables."""
