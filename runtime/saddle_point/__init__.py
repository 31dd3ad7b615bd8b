"""The map of states, its iteration and its slopes."""
