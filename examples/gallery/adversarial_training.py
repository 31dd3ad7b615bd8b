"""
Adversarial training gives up
=============================

A linear classifier is trained on inputs that an attacker moves by up to eps. Beyond some length no weights are
better than none, and training ends at W = 0. Linear classifiers: Javanmard, Soltanolkotabi, arXiv 2010.11213.
"""

# %%
# The worst attack costs eps ``|W|``: the loss holds the overlap q of the weights with themselves.
from adversarial_training import adversarial_training  # examples/adversarial_training.py

# %%
# Follow the attack at one sample size, and see what is left of the cosine with the teacher, and of the weights.
import matplotlib.pyplot as plt
import numpy as np

import saddleforge as sf

alpha = 2.0
end = np.sqrt(2 / np.pi + 1 / alpha)
attacks = np.linspace(0, 1.15, 20) * end
found = [sf.solve(sf.problem(adversarial_training, alpha=alpha, sigma=1, eps=eps), accuracy=1e-4) for eps in attacks]
for eps, solution in zip(attacks[::5], found[::5], strict=True):
    print(f"eps = {eps:.3f}: {solution.status}, q = {solution.overlaps.q.item():.4g}")

# %%
# **Closed form.** W = 0 is the minimum where the attack outweighs what the labels tell: eps >= sqrt(2/pi + 1/alpha).
# A solution that shrinks to nothing says so in its status.
assert all((solution.status == "collapsed") == (eps > end) for eps, solution in zip(attacks, found, strict=True))

fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6))
there = [s.status == "converged" for s in found]
norm = np.array([np.sqrt(s.overlaps.q.item()) for s in found])
theta = np.array([s.overlaps.theta.item() for s in found])
left.plot(attacks, norm, "o-", ms=3)
left.set(xlabel="length of the attack", ylabel="|W| / √d", yscale="symlog")
right.plot(attacks[there], np.arccos(theta[there] / norm[there]) / np.pi, "o-", ms=3)
right.set(xlabel="length of the attack", ylabel="test error, inputs not moved", ylim=(0, 0.5))
for ax in (left, right):
    ax.axvline(end, color="k", ls=":", label="√(2/π + 1/α)")
    ax.legend()
fig.tight_layout()
plt.show()
