"""Stability of replica symmetry: longitudinal spectrum, replicon, jumps."""
