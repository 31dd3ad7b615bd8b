"""Branches by arclength through folds, their bifurcations, and critical lines in a second parameter."""
