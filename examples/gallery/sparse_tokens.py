"""
A score pooled over tokens
==========================

A classifier reads a sentence of three tokens through one number, a weighted sum of its scores token by token. How much
is lost where the weights are not those that made the label?
"""

# %%
# The model is a file of the examples: a hinge loss on the pooled score.
import matplotlib.pyplot as plt
import numpy as np
from pooled_hinge import pooled_hinge  # examples/pooled_hinge.py

import saddleforge as sf

# %%
# The loss reads one combination of three fields, so that averages are taken in one dimension; `explanation` says so.
solution = sf.solve(sf.problem(pooled_hinge, alpha=2.0), accuracy=1e-8)
print("\n".join(solution.explanation))

# %%
# **Closed form** of the error: an angle. Two Gaussian numbers, the sum of the teacher's fields and the pooled score,
# have different signs with probability arccos(cosine) / pi; the cosine follows from the overlaps of one token.
pools = {"as the label": (1.0, 1.0, 1.0), "falling": (1.0, 0.5, 0.25), "the first alone": (1.0, 0.0, 0.0)}
alphas = np.geomspace(0.5, 16, 10)
fig, ax = plt.subplots(figsize=(6.4, 4))
for label, pool in pools.items():
    curve = sf.curve(sf.problem(pooled_hinge, pool=pool), over="alpha", values=alphas, accuracy=1e-6)
    weights = np.array(pool)
    cosine_of_pools = weights.sum() / np.sqrt(3 * (weights @ weights))
    for found in curve.solutions:
        q, theta = found.overlaps.q[0].item(), found.overlaps.theta[0].item()
        assert abs(found.test_error - np.arccos(cosine_of_pools * theta / np.sqrt(q)) / np.pi) < 1e-6
    ax.loglog(curve.values, [found.test_error for found in curve.solutions], "o-", label=label)
    ax.axhline(np.arccos(cosine_of_pools) / np.pi, color="k", lw=0.5, ls=":")

# %%
# With all samples of the world the error of a wrong pool remains (dotted).
ax.set(xlabel="α = n / d", ylabel="test error")
ax.legend()
plt.show()
