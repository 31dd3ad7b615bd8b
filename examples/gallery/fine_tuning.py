"""
Fine-tuning: when does it pay?
==============================

Weights are pulled toward those of an earlier task rather than toward zero. How alike must the tasks be?
"""

# %%
# A penalty may know a row of the teacher, and with it what was learned before.
from fine_tuning import fine_tuning  # examples/fine_tuning.py

# %%
# Sweep the overlap of the tasks at three sample sizes, compared with a ridge that begins at zero.
import matplotlib.pyplot as plt
import numpy as np

import saddleforge as sf

overlaps, strength, Delta = np.linspace(0, 0.95, 20), 0.5, 0.25


def closed_form(alpha, left):
    """Error of the ridge estimator of a teacher of squared length `left`."""
    b = strength + alpha - 1
    V = 2 / (b + np.sqrt(b * b + 4 * strength))
    s = alpha * V**2 / (1 + V) ** 2
    return (strength**2 * V**2 * left + s * Delta) / (1 - s)


fig, ax = plt.subplots(figsize=(6.4, 4))
for alpha in (0.5, 1.0, 2.0):
    tuned = sf.curve(sf.problem(fine_tuning, alpha=alpha), start="pre_trained", over="overlap", values=overlaps)
    errors = np.array([solution.test_error for solution in tuned.solutions])
    # w - w_0 is the ridge estimator of w* - w_0, whose squared length is 2 (1 - overlap)
    assert np.allclose(errors, closed_form(alpha, 2 * (1 - overlaps)), rtol=1e-8)
    scratch = sf.solve(sf.problem("ridge_regression", alpha=alpha, Delta=Delta, lambda_=strength)).test_error - Delta
    (line,) = ax.plot(overlaps, errors, label=f"α = {alpha}")
    ax.axhline(scratch, color=line.get_color(), ls=":")
ax.axvline(0.5, color="k", lw=0.8)
ax.set(xlabel="overlap of the tasks", ylabel="test error (dotted: from zero)", ylim=(0, None))
ax.legend()
plt.show()

# %%
# Whatever the number of samples, the lines cross at an overlap of one half, where w* - w_0 is as long as w*.
