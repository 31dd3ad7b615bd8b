"""Solve a problem: from a start to a solution with error bars."""
