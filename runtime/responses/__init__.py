"""How solutions answer to a parameter, and its best value."""
