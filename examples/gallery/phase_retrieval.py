"""
Phase retrieval
===============

Of every projection only the absolute value is seen. How many samples does it take to know anything at all, and how many
until a fast algorithm knows everything? Barbier, Krzakala, Macris, Miolane, Zdeborova, PNAS 116 (2019) 5451.
"""

# %%
# The model is in the catalogue, with an output channel: what is observed is the size of Y, the sign is hidden.
import matplotlib.pyplot as plt
import numpy as np

import saddleforge as sf

problem = sf.problem("phase_retrieval")

# %%
# **Published**: 1/2, and 1.128471407 for the algorithm.
weak = sf.bayes_threshold(problem, "weak_recovery")
algorithm = sf.bayes_threshold(problem, "algorithmic")
for name, found, published in (("weak recovery", weak, 0.5), ("algorithm", algorithm, 1.128471407)):
    print(f"{name}: {float(found.value):.9f}, published {published}")
    assert abs(float(found.value) - published) < 2e-9 * max(1, published)

# %%
# The overlap of the best estimate grows from 1/2 on; beyond the second threshold state evolution runs into the teacher.
alphas = np.linspace(0.3, 1.12, 22)
overlaps = [sf.bayes_optimal(sf.problem("phase_retrieval", alpha=alpha)).q.item() for alpha in alphas]
assert max(overlaps[: np.searchsorted(alphas, 0.49)]) < 1e-3 < 0.1 < overlaps[-1]

fig, ax = plt.subplots(figsize=(6.4, 4))
ax.plot(alphas, overlaps, "o-", label="overlap of the best estimate")
for found, style, label in ((weak, ":", "weak recovery"), (algorithm, "--", "algorithm recovers all")):
    ax.axvline(float(found.value), color="k", ls=style, label=label)
ax.set(xlabel="α = n / d", ylabel="q", xlim=(0.25, 1.2), ylim=(-0.02, 1))
ax.legend()
plt.show()
