"""
Starts, branches, and where they cross
======================================

Attention can solve a task by content (semantic) or by position. Each is a solution of the same equations; which one is
found depends on where the iteration starts, and which one wins on the number of samples. Cui, Behrens, Krzakala,
Zdeborova, arXiv 2402.03902.
"""

# %%
# Every model names its starts. Try all of them: what is found is ranked by training loss, the lowest first.
import matplotlib.pyplot as plt

import saddleforge as sf

problem = sf.problem("dot_product_attention", alpha=2.0)
for solution in sf.solutions(problem, accuracy=3e-3):
    print(f"{solution.rank}: from {solution.start}, loss {solution.training_loss:.6f}; {solution.stability.verdict}")

# %%
# A branch is followed along a parameter, each solution from its neighbour. One that ends inside says where.
curves = {
    start: sf.curve(sf.problem("dot_product_attention"), alpha=(1.0, 2.0, 6), start=start, accuracy=3e-3)
    for start in ("semantic", "positional")
}

# %%
# They cross where the training losses are equal. Published: 1.2410; the reason for the difference is in the atlas.
found = sf.crossing(sf.problem("dot_product_attention"), "alpha", between=("semantic", "positional"), accuracy=3e-3)
print(f"alpha_c = {found.value:.4f} +- {found.error:.4f}")
assert abs(found.value - 1.2515356) < 3e-3

fig, ax = plt.subplots(figsize=(6.4, 4))
for start, curve in curves.items():
    ax.plot([s.problem.alpha for s in curve.solutions], [s.training_loss for s in curve.solutions], "o-", label=start)
ax.axvline(found.value, color="k", ls=":")
ax.set(xlabel="α = n / d", ylabel="training loss per d")
ax.legend()
plt.show()
