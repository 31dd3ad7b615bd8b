"""Derivatives of solutions with respect to parameters, and the best values of parameters."""
