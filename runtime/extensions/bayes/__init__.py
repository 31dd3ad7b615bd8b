"""Bayes-optimal inference of the teacher: state evolution, free entropy, thresholds."""
