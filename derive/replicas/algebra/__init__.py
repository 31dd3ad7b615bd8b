"""Building blocks of the steps: replicated symbols, exact values, block matrices, checks."""
