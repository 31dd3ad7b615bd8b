"""The equations of one model with its own symbols, checked against the matrix form."""
