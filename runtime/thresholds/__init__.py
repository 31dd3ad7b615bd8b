"""Thresholds: values of a parameter at which branches cross, a condition holds or stability is lost."""
