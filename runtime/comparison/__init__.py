"""Simulation beside theory."""
