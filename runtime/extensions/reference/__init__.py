"""Solutions beyond double precision, in mpmath: models of one token, whose averages are one- or two-dimensional.

The generated `reference.py` of a solver comes from the same kernels as its Numba code.
"""
