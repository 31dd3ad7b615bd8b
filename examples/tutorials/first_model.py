"""
Your first model
================

Logistic regression on labels that are wrong now and then: how much do ten per cent of flipped labels cost?
"""

# %%
# A model is a loss in finitely many numbers. X is what the student computes of a sample, Y what the teacher does, and `u`
# is noise that is drawn afresh with every sample. Here the label is u sign(Y), and u is -1 with probability `flip`.
from flipped_labels import flipped_labels  # examples/flipped_labels.py

# %%
# Give the parameters numbers and solve. `alpha` is the number of samples for each dimension. The first call derives the
# equations, generates a solver and compiles it; both are kept, and the next call takes a moment.
problem = sf.problem(flipped_labels, alpha=2)
solution = sf.solve(problem)
print(solution.table())
