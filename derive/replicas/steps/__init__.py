"""The replica calculation, step by step, each with checks that can fail."""
