"""Loops that no model decides: compiled once, called by every generated solver, sizes taken from shapes.

Each file is plain Numba on NumPy arrays and tuples of numbers. A generated file holds expressions of its model and the
loops around them; what it calls from here is part of the digest in its header (derive/digest.py), as Numba's cache does
not see a change in another file.
"""
