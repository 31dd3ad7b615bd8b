"""Calculus on SymPy expressions that knows no model: averages, functions, chain rules, pieces, subexpressions."""
