"""
Reading a verdict
=================

A solution of the saddle-point equations is not yet the truth: it may be unstable, lie above another one, or be told
only to a few digits. What is printed below one says which, and this is how to read it.
"""

# %%
# Two problems whose answers are known. Ridge regression is convex: its solution is the minimum. The perceptron at
# alpha = 4 is asked for more than it can do, errors are counted, and replica symmetry is known to be wrong.
import matplotlib.pyplot as plt
import numpy as np
import sympy as sp

import saddleforge as sf

ridge = sf.solve(sf.problem("ridge_regression", alpha=2.0))
print(ridge)

# %%
# **Half widths.** Every number has one in brackets, in units of its last digit: what other rules, finer ones and what
# is left of the residual would move it by. `status` is converged where the accuracy was reached.
assert ridge.status == "converged" and ridge.error_bars.test_error < 1e-8

# %%
# **RS stable (replicon ...).** The replicon is the Perron root of a map: below 1 small differences between replicas
# die out. Of the square loss it is alpha V^2 / (1 + V)^2.
stability = ridge.stability
print(stability.verdict)
V = ridge.overlaps.V.item()
assert abs(stability.replicon - 2.0 * V**2 / (1 + V) ** 2) < 1e-8 and stability.replicon < 1

# %%
# **Longitudinal eigenvalues** are those of the iteration within replica symmetry. One above 1 is a saddle point that
# descent leaves; far below -1 it only asks for damping.
assert np.max(stability.eigenvalues.real) < 1


# %%
# Now one that does not hold: the number of errors of a perceptron on random labels, four a weight.
@sf.model(regulariser=sf.Sphere(), starts={"uninformed": sf.Start(noise=1, susceptibility=5)})
def random_labels(X, Y):
    """Number of samples on the wrong side."""
    return sp.Heaviside(-X[0, 0])


broken = sf.solve(sf.problem(random_labels, alpha=4.0), "uninformed")
print(broken.stability.verdict)
assert "unstable" in broken.stability.verdict

# %%
# What to do then: ask how much it matters. One step of breaking moves the energy from 0.2480 to 0.3095 (the published
# values), and says whether that is stable in turn.
one = sf.solve(broken.problem, "uninformed", rsb=1, accuracy=1e-5)
print(f"RS {one.symmetric.training_loss:.7f}, one step {one.energy:.7f}")
assert abs(one.symmetric.training_loss - 0.2480130061) < 1e-6 and abs(one.energy - 0.3094716) < 1e-5

# %%
# Along a curve the verdict of every point is in the table, and in the data frame as `replicon` and `verdict`.
curve = sf.curve(sf.problem(random_labels), over="alpha", values=np.linspace(2.5, 6, 4), start="uninformed")
frame = curve.to_pandas()
assert (frame["replicon"] > 1).all()
fig, ax = plt.subplots(figsize=(6.4, 4))
ax.plot(frame["alpha"], frame["replicon"], "o-")
ax.axhline(1, color="k", ls=":")
ax.set(xlabel="α = n / d", ylabel="replicon; replica symmetry needs < 1")
plt.show()
