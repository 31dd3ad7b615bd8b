"""
Your first model
================

Logistic regression on labels that are wrong now and then: how much do flipped labels cost, and does a simulation agree?
"""

# %%
# A model is a loss in finitely many numbers. X is what the student computes of a sample, Y what the teacher does; `u`
# is noise that is drawn afresh with every sample. Here the label is u sign(Y), and u is -1 with probability `flip`.
from flipped_labels import flipped_labels  # examples/flipped_labels.py

# %%
# Give the parameters numbers and solve. `alpha` is the number of samples for each dimension. The first call derives the
# equations, generates a solver and compiles it; both are kept, and the next call takes a moment.
import matplotlib.pyplot as plt
import numpy as np

import saddleforge as sf

solution = sf.solve(sf.problem(flipped_labels, alpha=2))
print(solution.table())

# %%
# q is the squared length of the weights, theta their overlap with the teacher, and digits in brackets are an error bar.
# The 0-1 error on clean labels is the angle between student and teacher over pi; this is a check that costs a line.
q, theta = solution.overlaps.q.item(), solution.overlaps.theta.item()
assert abs(np.arccos(theta / np.sqrt(q)) / np.pi - solution.test_error) < 1e-6

# %%
# A curve for each share of flipped labels, and for one of them a direct minimisation at d = 200.
fig, ax = plt.subplots(figsize=(6.4, 4))
for flip in (0.0, 0.1, 0.3):
    curve = sf.curve(sf.problem(flipped_labels, flip=flip), alpha=(0.5, 6, 12))
    at = [s.problem.alpha for s in curve.solutions]
    ax.plot(at, [s.test_error for s in curve.solutions], label=f"{flip:.0%} flipped")
for alpha in (1.0, 3.0, 5.0):
    runs = sf.simulate(sf.problem(flipped_labels, alpha=alpha, flip=0.1), d=200, seeds=6, threads=1)
    measured = runs.estimate("test_error")
    theory = sf.solve(sf.problem(flipped_labels, alpha=alpha, flip=0.1)).test_error
    assert abs(measured.mean - theory) < 4 * measured.standard_error + 0.01
    ax.errorbar(alpha, measured.mean, measured.standard_error, fmt="ko", capsize=3)
ax.set(xlabel="α = n / d", ylabel="test error on clean labels", ylim=(0, 0.5))
ax.legend()
plt.show()
