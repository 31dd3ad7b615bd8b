"""Kernels as source: Python's expressions, and the dialects of Numba, mpmath and intervals."""
