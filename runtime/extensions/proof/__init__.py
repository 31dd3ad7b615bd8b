"""Proofs in ball arithmetic (Arb, through python-flint): that the equations have exactly one solution in a box.

Nothing here is imported before a proof is asked for; python-flint is an optional dependency.
"""
