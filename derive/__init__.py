"""Symbolic physics: from a model to its free entropy, saddle-point equations and generated solver.

Importing this package loads nothing; its modules load SymPy, and never NumPy or Numba.
"""
