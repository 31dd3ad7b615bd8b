"""Values of a parameter at which something changes."""
