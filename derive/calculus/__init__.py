"""Calculus on SymPy expressions, without models: averages, functions, chain rules, pieces, subexpressions."""
