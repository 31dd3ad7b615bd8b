"""Several parameters tuned together: closed forms, the published optimum of Huber's loss, what is kept of a search."""

import json
from pathlib import Path

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.base.errors import InputError

WIDE = {"lambda": (0.01, 10), "Delta": (0.1, 1)}


def ridge(**values):
    return sf.problem("ridge_regression", **{"alpha": 2.0, "lambda_": 1.0} | values)


def test_the_ridge_of_least_error_is_the_variance_of_the_noise():
    """Both tuned: the least noise that is searched, an end, and the ridge that belongs to it."""
    found = sf.tune(ridge(), ["lambda", "Delta"], bracket=WIDE, accuracy=1e-3)
    assert found.parameters == ("lambda_", "Delta") and found.kinds == ("minimum", "lower_end")
    assert abs(found["lambda"] - 0.1) <= found.errors[0] <= 1e-4 and found["Delta"] == pytest.approx(0.1)
    assert found.status == "edge" and "try wider" in found.advice  # the noise may be smaller
    as_json = json.loads(json.dumps(found.to_json(), default=lambda array: np.asarray(array).tolist()))
    assert as_json["parameter"] == ["lambda", "Delta"] and set(as_json["value"]) == set(as_json["error"]) == {
        "lambda",
        "Delta",
    }
    assert len(as_json["tried"]) == len(found.tried) and set(as_json["tried"][0]["values"]) == {"lambda", "Delta"}


def test_one_of_them_is_what_tuning_it_alone_finds():
    found = sf.tune(ridge(Delta=0.3), ("lambda",), bracket={"lambda": (0.01, 10)}, accuracy=1e-5)
    assert found.success and abs(found.values[0] - 0.3) <= found.errors[0] <= 3e-6
    assert all(trial.observed >= found.observed - 1e-12 for trial in found.tried)


def test_parameters_at_ends_of_their_intervals_are_named_so():
    """The best ridge, the variance of the noise, is below all that are searched."""
    found = sf.tune(ridge(), ["lambda", "Delta"], bracket={"lambda": (1.0, 10.0), "Delta": (0.1, 0.8)}, accuracy=1e-3)
    assert found.kinds == ("lower_end", "lower_end") and found.status == "edge"
    assert found.values == pytest.approx((1.0, 0.1)) and np.isnan(found.errors).all()


def test_an_interrupted_joint_tuning_keeps_its_trials():
    seen = []

    def three(trial):
        seen.append(trial)
        if len(seen) == 3:
            raise KeyboardInterrupt

    found = sf.tune(ridge(), ["lambda", "Delta"], bracket=WIDE, on_trial=three)
    assert found.status == "interrupted" and len(found.tried) >= 3 and not found.success
    assert found.observed == min(trial.observed for trial in found.tried) and "best of" in found.advice


@pytest.mark.parametrize(
    ("names", "options", "words"),
    [
        (["lambda", "lambda"], {}, "twice"),
        (["lambda", "Delta"], {"bracket": {"sigma": (1, 2)}}, "'sigma', which is not tuned"),
        (["lambda", "Delta"], {"bracket": (1, 2)}, "intervals by name"),
        ("lambda", {"scan": 3}, "takes no 'scan': it is for a list of several"),
        (["lambda", "what"], {}, "not a scalar parameter"),
    ],
    ids=str,
)
def test_invalid_arguments_of_joint_tuning_are_refused(names, options, words):
    with pytest.raises(InputError, match=words):
        sf.tune(ridge(), names, **options)


@pytest.mark.slow
def test_the_published_ridge_and_width_of_hubers_loss_are_found_together():
    """lambda = 0.398, a = 0.964, excess error 0.24257 at alpha = 10 (arXiv 2305.18974)."""
    file = Path(__file__).parents[2] / "examples" / "gallery" / "robust_regression.py"
    text = file.read_text(encoding="utf-8")
    names: dict = {}
    exec(text[: text.index("# **Published**")], names)
    problem = sf.problem(names["among_outliers"], alpha=10, lambda_=1.0, width=2.0)
    bracket = {"lambda": (0.05, 5), "width": (0.1, 5)}
    found = sf.tune(problem, ["lambda", "width"], on="semantic", bracket=bracket)
    assert found.success
    assert np.allclose(found.values, (0.398, 0.964), atol=5e-4) and abs(found.observed - 0.24257) < 5e-6
    alone = sf.tune(problem.with_(width=found["width"]), "lambda", on="semantic", bracket=(0.3, 0.5))
    assert abs(alone.value - found["lambda"]) <= alone.error + found.errors[0]
