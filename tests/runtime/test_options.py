"""Options of algorithms: documented, frozen, in force for one call, and refused where they are none."""

import dataclasses
import inspect
import pkgutil
import re
from importlib import import_module

import pytest

import saddleforge as sf
from saddleforge.base.options import AlgorithmOptions, options_in_force
from saddleforge.saddle_point.iteration import FixedPointOptions
from saddleforge.thresholds.root import RootOptions


def every_class() -> list[type[AlgorithmOptions]]:
    for module in pkgutil.walk_packages(sf.__path__, "saddleforge."):
        if "generated" not in module.name and ".derive" not in module.name:
            import_module(module.name)
    return AlgorithmOptions.__subclasses__()


def test_all_options_have_defaults_documented_fields_and_a_name_of_their_own():
    classes = every_class()
    assert len(classes) > 80 and len({each.__name__ for each in classes}) == len(classes)
    for each in classes:
        assert each.__name__.endswith("Options") and each() == each() == each.current()
        for field in dataclasses.fields(each):  # type: ignore[arg-type]
            assert re.search(rf"\b{field.name}\b.*:", inspect.getdoc(each) or ""), f"{each.__name__}.{field.name}"
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(each(), dataclasses.fields(each)[0].name, 0)  # type: ignore[arg-type]


def test_options_hold_for_one_call():
    ask = {"condition": "test_error = 0.4", "on": "semantic", "bracket": (1.0, 6.0), "accuracy": 1e-6}
    problem = sf.problem("ridge_regression")
    usual = sf.where(problem, **ask)
    short = sf.where(problem, **ask, options=[RootOptions(max_evaluations=1), FixedPointOptions()])
    assert (usual.status, short.status) == ("converged", "accuracy_not_reached") and short.error > usual.error
    assert sf.where(problem, **ask).value == usual.value


def test_inner_options_replace_outer_ones_of_their_class():
    outer, inner, other = RootOptions(max_evaluations=5), RootOptions(max_evaluations=6), FixedPointOptions()
    with options_in_force(outer, other):
        with options_in_force(inner):
            assert RootOptions.current() is inner and FixedPointOptions.current() is other
        assert RootOptions.current() is outer
    assert RootOptions.current() == RootOptions()


@pytest.mark.parametrize(
    ("options", "match"),
    [({"max_evaluations": 5}, "'max_evaluations'"), ([RootOptions(), RootOptions()], "RootOptions is given 2 times")],
)
def test_an_object_that_is_no_options_object_is_refused(options, match):
    with pytest.raises(sf.InputError, match=match):
        sf.where(sf.problem("ridge_regression"), "test_error = 0.4", bracket=(1, 6), options=options)
