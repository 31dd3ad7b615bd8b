"""Curves reach their accuracy where the proximal map jumps, and end where their branch does."""

import saddleforge as sf
from saddleforge.branches.branch import Branch


def test_a_curve_refines_points_that_miss_its_accuracy():
    (solution,) = sf.curve(sf.problem("dot_product_attention"), start="semantic", alpha=[0.8]).solutions
    assert solution.success and solution.relative_error <= 1e-3
    # solve --accuracy 1e-4, on 168 x 84 nodes
    error = sf.Overlaps.unpack(solution.errors, solution.overlaps.sizes).theta
    assert abs(solution.overlaps.theta - 0.059330).max() < error.max() + 3e-6


def test_below_the_end_of_a_branch_no_other_rule_finds_it():
    """The semantic branch ends at alpha = 0.7192 in a pitchfork, where theta^2 vanishes linearly on 168 x 84 nodes."""
    branch = Branch(sf.problem("dot_product_attention"), "alpha", "semantic", effort=2)
    assert branch.solution_at_parameter(0.75) is not None
    branch.followed = True
    for alpha in (0.715, 0.718):
        assert branch.solution_at_parameter(alpha) is None
        assert not any("sobol" in text for text in branch.failed[alpha].tried)
