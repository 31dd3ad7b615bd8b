"""
Finding out why it did not converge
===================================

Not converging is a status with a reason. Five of them, what each means, and what to do.
"""

# %%
# **left domain**: a matrix lost positivity. The message names it, its eigenvalue and its direction. Here alpha = 1/2
# data a weight cannot hold the weights against a ridge of -0.1.
import matplotlib.pyplot as plt
import numpy as np

import saddleforge as sf

held = sf.solve(sf.problem("ridge_regression", alpha=0.5, lambda_=-0.1))
print(held.status, "-", held.advice)
assert held.status == "left_domain" and "Lambda + G" in held.outside

# %%
# That is a fact about the problem, not about the start: with alpha = 2 the same ridge has a solution.
assert sf.solve(sf.problem("ridge_regression", alpha=2.0, lambda_=-0.1)).success

# %%
# **left basin**: there is a solution, but on another branch: it lost the overlap of the start. The semantic branch of
# attention ends near alpha = 0.72; below, its start leads to the uninformed one. `curve` gives the end of the branch.
lost = sf.solve(sf.problem("dot_product_attention", alpha=0.5), "semantic", accuracy=1e-2)
print(lost.status, "-", lost.branch, "-", lost.advice)
assert lost.status == "left_basin" and lost.branch == "uninformed"
curve = sf.curve(sf.problem("dot_product_attention"), alpha=(0.6, 1.2, 5), start="semantic", accuracy=1e-2)
print(curve.end_text())
assert "below" in curve.end_text()

# %%
# **time limit**: what is shown is the best so far, with its error bars where it has any.
late = sf.solve(sf.problem("dot_product_attention", alpha=2.0), accuracy=1e-12, time_limit=0.3)
print(late.status, "-", late.advice)
assert late.status == "time_limit"

# %%
# **accuracy not reached**: the answer is there, known less well than asked. `explanation` says what was tried.
rough = sf.solve(sf.problem("dot_product_attention", alpha=2.0), integrator="sobol", points=10, accuracy=1e-6)
print(rough.status, f"error bar {rough.relative_error:.1e}")
print("\n".join(rough.explanation))
assert not rough.success

# %%
# **Another start, or one nearby.** A solution at a neighbouring value is the best start there is, and measured overlaps
# will do: V is found from the others.
near = sf.solve(sf.problem("logistic_regression", alpha=2.2))
there = sf.solve(near.problem.with_(alpha=2.0), near)
measured = sf.Overlaps.measured(q=5.0, theta=1.5)
again = sf.solve(there.problem, measured)
assert there.success and again.success
assert np.allclose(there.overlaps.pack(), again.overlaps.pack(), rtol=1e-3, atol=1e-4)

fig, ax = plt.subplots(figsize=(6.4, 4))
ax.plot(curve.values, [s.overlaps.theta[0].item() for s in curve.solutions], "o-", label="semantic branch")
for end in filter(None, curve.ends):
    ax.axvspan(min(end), max(end), color="r", alpha=0.3, label="the branch ends here")
ax.plot(lost.problem.alpha, abs(lost.overlaps.theta[0].item()), "kx", label="another branch")
ax.set(xlabel="α = n / d", ylabel="θ")
ax.legend()
plt.show()
