"""Online dynamics: one-pass stochastic gradient descent for large d in closed equations (docs/theory.md section 19)."""
