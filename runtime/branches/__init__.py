"""Solutions along a parameter."""
