"""Symbolic physics: from a model to its free entropy, saddle-point equations and generated solver.

Importing this package loads nothing; its modules load SymPy, and never NumPy or Numba.
"""

import os

# Results that SymPy keeps, 1000 by default: derivations take up to a third less time. SymPy reads it when it is loaded.
os.environ.setdefault("SYMPY_CACHE_SIZE", "100000")
