"""Online dynamics: one-pass stochastic gradient descent for large d, as closed equations (docs/theory.md section 19)."""
