"""What steps are written in and checked with: replicated symbols, exact values, block matrices, checks."""
