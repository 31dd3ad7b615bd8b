"""Figures of `reproduce`, one file a run."""
