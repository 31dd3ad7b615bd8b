"""Why a rule was taken is reported: dimensions, kinks and jumps of the averages, what was tried."""

import pytest

import saddleforge as sf


def solved_with_explanation(model: str, **options) -> tuple[sf.Solution, str]:
    chosen = {name: options.pop(name) for name in ("integrator", "points", "accuracy") if name in options}
    solution = sf.solve(sf.problem(model, **options), **chosen)
    return solution, "\n".join(solution.explanation)


def test_dimensions_and_what_the_loss_reads_of_them_are_reported():
    solution, text = solved_with_explanation("ridge_regression", alpha=2)
    assert "1 of the student, 1 of the teacher, 1 of noise, 3 dimensions in all" in text
    assert "1 of the student, 1 dimension in all" in text  # a residual
    assert "the loss is smooth" in text and "does not jump" in text
    assert solution.explanation[-1].startswith(f"{solution.rule.name}, {solution.rule.size_in_words}: Newton's method")


def test_kinks_and_corners_are_reported():
    _, text = solved_with_explanation("hinge", alpha=2)
    assert "not smooth on 3 planes" in text and "and at kinks" in text


def test_rules_that_were_given_up_are_reported_with_the_reason():
    """Signs of the field are lost in phase retrieval: its law is narrow on a grid in X, and the proximal map jumps."""
    solution, text = solved_with_explanation("phase_retrieval", alpha=2, accuracy=1e-2)
    assert "a second minimum at a fraction 0.07" in text and solution.rule.name == "pieces"
    assert "its grid does not cover the law of the fields" in text
    assert text.index("prox-space, 96 x 48") < text.index("pieces, 8 points: Newton")


def test_a_rule_that_was_named_is_all_that_was_tried():
    solution, _ = solved_with_explanation("ridge_regression", alpha=2, integrator="gauss-hermite", points=20)
    assert [line.split(":")[0] for line in solution.tried] == ["gauss-hermite, 20 points"]


@pytest.mark.slow
def test_many_fields_are_said_to_be_the_reason_for_lattices_or_samples():
    _, text = solved_with_explanation("dot_product_attention", alpha=2, tokens=3, accuracy=5e-2)
    assert any(f"{rule}: the loss depends on 3 student fields" in text for rule in ("lattices", "samples"))
