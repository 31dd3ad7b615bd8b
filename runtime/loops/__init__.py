"""Numerical loops that do not depend on the model: compiled once, called by every generated solver.

Each file is plain Numba on NumPy arrays and tuples of numbers, with sizes taken from shapes. A generated file
holds expressions of its model and the loops around them. The functions that it calls from here are part of the digest
in its header (derive/digest.py), as Numba's cache does not notice a change in another file.
"""
