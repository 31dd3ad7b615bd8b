"""
Which token holds the answer?
=============================

One of two tokens is marked, and the label is what that token says. Softmax attention has to find the mark; a linear
product of scores and values never looks away from the other token. After Duranthon, Marion, Boyer, Loureiro,
Zdeborova, arXiv 2509.21936.
"""

# %%
# The model is a file of the examples: softmax attention whose key and value are the columns of W.
import matplotlib.pyplot as plt
import numpy as np
from single_location import single_location  # examples/single_location.py

import saddleforge as sf


# %%
# The same with linear attention: scores multiply values, and nothing is normalised.
def linear(h):
    """Values times scores, summed over the tokens."""
    return h[0, 0] * h[0, 1] + h[1, 0] * h[1, 1]


@sf.model(
    tokens=2,
    student=2,
    clusters=2,
    law=one_is_marked,  # noqa: F821
    regulariser=sf.Ridge(0.1),
    noise={"u": sf.GaussianNoise(variance="Delta")},
    metric=lambda h, Y, k: (answer(Y, k) - linear(h)) ** 2,  # noqa: F821
    starts={"semantic": sf.Start(teacher=((0,), (0.5,)), encodings=((0, 0.4, 0, 0.4), (0, 0, 0, 0)))},
)
def linear_location(X, Y, k, u, *, Delta=sf.Parameter(0.1, 0)):
    """Least squares of linear attention on what one token says."""
    return sf.half_square(answer(Y, k) + u - linear(X))  # noqa: F821


alpha = 12.0
models = (single_location, linear_location)
found = {model.name: sf.solve(sf.problem(model, alpha=alpha), accuracy=3e-2) for model in models}

# %%
# **Simulation** of 100 inputs, minimised from the same starts: both errors agree within what 100 inputs allow.
measured = {}
for name, solution in found.items():
    runs = sf.simulate(solution.problem, d=100, seeds=6, start="semantic", threads=1)
    measured[name] = error = runs.estimate("test_error")
    print(f"{name}: {solution.test_error:.4f}, simulated {error.mean:.4f} +- {error.standard_error:.4f}")
    assert abs(error.mean - solution.test_error) < 4 * error.standard_error + 0.05 * solution.test_error

# %%
# **Closed form.** With scores a along the mark and values b along the teacher only, linear attention errs by
# E (Y - a g b Y)^2 + E (a z b Y')^2, g = sqrt(nu) + z: least where ab = sqrt(nu) / (nu + 2), there 2 / (nu + 2). What
# is learned from samples stays above, and softmax goes below.
nu = 4.0
floor = 2 / (nu + 2)
assert found["single_location"].test_error < floor < found["linear_location"].test_error

fig, ax = plt.subplots(figsize=(6.4, 3.6))
places = np.arange(2)
for k, name in enumerate(("single_location", "linear_location")):
    ax.bar(k, found[name].test_error, 0.5, color=f"C{k}", alpha=0.6)
    ax.errorbar(k, measured[name].mean, 2 * measured[name].standard_error, fmt="ko", capsize=4)
ax.axhline(floor, color="C1", ls=":", label="linear, along mark and teacher only")
ax.set(xticks=places, xticklabels=["softmax", "linear"], ylabel="test error")
ax.set_title("α = 12: bars theory, points d = 100")
ax.legend()
plt.show()
