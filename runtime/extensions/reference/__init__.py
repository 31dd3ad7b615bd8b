"""Digits beyond double precision: models of one token whose integrals have two dimensions, in mpmath.

The printed `reference.py` of a solver comes from the same kernels as its Numba code. Imported only when asked for.
"""
