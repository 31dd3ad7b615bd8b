"""What is imported, and when: each in a fresh process."""

import subprocess
import sys
from textwrap import dedent

import pytest

import saddleforge as sf


def fresh(code: str) -> set[str]:
    """Top-level packages in sys.modules after running code in a fresh interpreter."""
    report = "import sys; print('\\n' + ' '.join(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", f"{dedent(code)}\n{report}"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_package_loads_nothing_heavy():
    assert not fresh("import saddleforge") & {"numpy", "scipy", "sympy", "numba", "typer", "matplotlib", "xarray"}


def test_solving_a_catalogue_model_leaves_sympy_alone():
    code = """
        import saddleforge as sf
        solution = sf.solve(sf.problem("ridge_regression", alpha=2.0))
        assert solution.success and solution.stability and solution.to_json()
    """
    loaded = fresh(code)
    assert "numba" in loaded
    assert "sympy" not in loaded


def test_compiled_solvers_are_loaded_without_the_compiler():
    code = """
        import sys
        import numpy as np
        import saddleforge as sf
        from saddleforge.problems.problem import problem
        from saddleforge.solving.solve import solve
        solution = solve(problem("dot_product_attention", alpha=2.0))
        assert solution.success and solution.stability
    """
    fresh(code)
    again = """
        assert "numba.np.arraymath" not in sys.modules and "scipy.linalg" not in sys.modules
        from numba import njit
        product = njit(lambda a, b: a @ b)  # what compiles is there when it is asked for
        assert product(np.eye(2), np.ones((2, 3))).sum() == 6
        assert "numba.np.arraymath" in sys.modules
    """
    fresh(dedent(code) + dedent(again))


@pytest.mark.slow
def test_an_unchanged_model_file_is_not_executed_again(tmp_path, monkeypatch):
    monkeypatch.setenv("SADDLEFORGE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "helper.py").write_text("C = 2")
    (tmp_path / "scaled.py").write_text(
        dedent("""
            import sys
            sys.path.insert(0, __file__.rpartition("/")[0])
            import helper
            import saddleforge as sf

            @sf.model()
            def scaled(X, Y):
                return sf.half_square(helper.C * Y[0] - X[0])
        """)
    )
    code = f"from saddleforge.problems.solver import load_solver; load_solver({str(tmp_path / 'scaled.py')!r})"
    assert "sympy" in fresh(code)
    assert "sympy" not in fresh(code)


@pytest.mark.slow
def test_high_precision_leaves_sympy_alone_and_doubles_leave_mpmath_alone():
    code = "import saddleforge as sf; problem = sf.problem('logistic_regression', alpha=2.0)"
    assert "mpmath" not in fresh(f"{code}; sf.solve(problem)")
    loaded = fresh(f"{code}; assert sf.solve_precisely(problem, accuracy=1e-14).success")
    assert "mpmath" in loaded
    assert not loaded & {"sympy", "flint"}


def test_high_precision_does_without_balls():
    assert "flint" not in fresh(
        "import saddleforge.extensions.reference.solution, saddleforge.extensions.reference.thresholds"
    )


@pytest.mark.slow
def test_balls_are_loaded_for_a_proof_and_leave_sympy_alone():
    code = "import saddleforge as sf; problem = sf.problem('ridge_regression', alpha=2.0)"
    loaded = fresh(f"{code}; assert sf.solve_precisely(problem, accuracy=1e-14, proof=True).success")
    assert "flint" in loaded
    assert "sympy" not in loaded


def test_deriving_loads_neither_numpy_nor_numba():
    code = """
        import pkgutil
        from importlib import import_module
        import saddleforge.derive as derive
        for found in pkgutil.walk_packages(derive.__path__, "saddleforge.derive."):
            import_module(found.name)
        from saddleforge.derive.catalogue import catalogue_model
        from saddleforge.derive.emit.writer import generate
        from saddleforge.derive.report.text import report_text
        model = catalogue_model("ridge_regression")
        assert generate(model, model.structure()).files and report_text(model)
    """
    loaded = fresh(code)
    assert "sympy" in loaded
    assert not loaded & {"numpy", "numba", "scipy"}


def test_models_and_help_do_without_numba():
    for arguments in (["models"], ["--help"], ["--version"]):
        code = f"""
            import saddleforge.cli
            try:
                saddleforge.cli.main({arguments!r})
            except SystemExit as left:
                assert left.code == 0
        """
        assert not fresh(code) & {"numpy", "numba", "sympy", "scipy"}


def test_every_public_name_is_there():
    assert [name for name in sf.__all__ if getattr(sf, name, None) is None] == []


def test_problem_is_the_function_whatever_is_touched_first():
    """Each time the package is imported again; NumPy and Numba stay, which know nothing of it."""
    fresh(
        """
        import sys
        from importlib import import_module
        for first in ("solve", "Problem", "curve", "where"):
            for name in [name for name in sys.modules if name.split(".")[0] == "saddleforge"]:
                del sys.modules[name]
            sf = import_module("saddleforge")
            getattr(sf, first)
            assert callable(sf.problem) and sf.problem.__name__ == "problem", first
        """
    )


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="sovle"):
        _ = sf.sovle
