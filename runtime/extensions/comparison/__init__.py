"""Comparison of simulations and measurements with theory."""
