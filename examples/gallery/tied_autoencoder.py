"""
A tied autoencoder
==================

One hidden unit, the same weights to encode and to decode, inputs from two clusters: from how many samples on do the
weights find the direction in which the clusters differ? After Cui, Zdeborova, arXiv 2305.11041.
"""

# %%
# The model is a file of the examples. Its loss holds the overlap q itself, since the decoder is as long as W.
import matplotlib.pyplot as plt
import numpy as np
from autoencoder import autoencoder  # examples/autoencoder.py

import saddleforge as sf

curve = sf.curve(
    sf.problem(autoencoder), start="positional", over="alpha", values=np.linspace(0.6, 4, 12), accuracy=1e-4
)
print(curve.end_text())
assert len(curve.solutions) == 12 and all(solution.success for solution in curve.solutions)

# %%
# **Check** against gradient descent at d = 200, n = alpha d.
problem = sf.problem(autoencoder, alpha=2.0)
theory = sf.solve(problem, "positional", accuracy=1e-5)
simulation = sf.simulate(problem, d=200, seeds=8, start="positional", threads=1)
loss = simulation.estimate("training_loss")
print(f"training loss {theory.training_loss:.4f}, simulated {float(loss.mean):.4f} +- {float(loss.standard_error):.4f}")
assert abs(float(loss.mean) - theory.training_loss) < 4 * float(loss.standard_error) + 0.01 * abs(theory.training_loss)

# %%
# The cosine of the weights with the difference of the means: m over the root of q / sigma^2, which is W . W / d.
sigma = 0.5
cosines = [abs(s.overlaps.m[0].item()) / np.sqrt(s.overlaps.q[0].item() / sigma**2) for s in curve.solutions]
assert np.all(np.diff(cosines) > 0) and cosines[-1] < 1
fig, ax = plt.subplots(figsize=(6.4, 4))
ax.plot(curve.values, cosines, "o-", label="cosine with the means")
ax.plot(curve.values, [s.test_error for s in curve.solutions], "s-", label="reconstruction error beyond W = 0")
ax.set(xlabel="α = n / d")
ax.legend()
plt.show()
