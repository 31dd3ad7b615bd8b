"""Functions that `math` lacks, against mpmath, as text and compiled; what the library stands on."""

import ast
import math
import re
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest

import saddleforge

ROOT = Path(saddleforge.__path__[0]) / "loops"
FILES = sorted(ROOT.glob("*.py"))
ARGUMENTS = [-745.0, -40.0, -1.0, -1e-9, 0.0, 0.3, 2.0, 37.0, 710.0]


@pytest.mark.parametrize("z", ARGUMENTS)
def test_sigmoid_and_softplus_neither_overflow_nor_lose_digits(loops, z):
    special = loops["special"]
    with mp.workdps(400):
        assert special.sigmoid(z) == pytest.approx(float(1 / (1 + mp.exp(-mp.mpf(z)))), rel=1e-15, abs=0)
        assert special.softplus(z) == pytest.approx(float(mp.log1p(mp.exp(mp.mpf(z)))), rel=1e-15, abs=0)
    assert special.step(z) == 0.5 * (1 + np.sign(z))


FAR = [-1e8, -1e4, -746.0, -4.0, -3.9, 0.0, 36.9, 710.0, 1e8]


def mills(z):
    return mp.sqrt(2 / mp.pi) * mp.exp(-z * z / 2) / mp.erfc(-z / mp.sqrt(2))


def gumbel(n, z):
    """exp(n z) / (exp(exp(z)) - 1) by its limits where exp(exp(z)) has too many digits."""
    return mp.exp((n - 1) * z) if z < -800 else mp.mpf(0) if z > 20 else mp.exp(n * z) / mp.expm1(mp.exp(z))


LOGARITHMS = {
    "log_softplus": lambda z: z if z < -800 else mp.log(mp.log1p(mp.exp(z))),
    "sigmoid_over_softplus": lambda z: mp.mpf(1) if z < -800 else 1 / ((1 + mp.exp(-z)) * mp.log1p(mp.exp(z))),
    "log_normal_cdf": lambda z: mp.log(mp.erfc(-z / mp.sqrt(2)) / 2),
    "inverse_mills_ratio": mills,
    "truncated_normal_mean": lambda z: z + mills(z),
    "log_gumbel_cdf": lambda z: z if z < -800 else mp.mpf(0) if z > 20 else mp.log(-mp.expm1(-mp.exp(z))),
}


@pytest.mark.parametrize("name", LOGARITHMS)
def test_logarithms_of_probabilities_and_their_slopes_hold_in_the_tails(name, loops):
    function = getattr(loops["special"], name)
    with mp.workdps(400):
        for z in [*ARGUMENTS, *FAR]:
            assert function(z) == pytest.approx(float(LOGARITHMS[name](mp.mpf(z))), rel=1e-13, abs=1e-200), z


@pytest.mark.parametrize("n", [1, 2, 3])
def test_slopes_of_the_complementary_log_log_hold_in_the_tails(n, loops):
    with mp.workdps(60):
        for z in [*ARGUMENTS, *FAR]:
            assert loops["special"].gumbel_ratio(float(n), z) == pytest.approx(float(gumbel(n, mp.mpf(z))), rel=1e-13)


@pytest.mark.parametrize("row", [(0.3,), (1.0, -2.0), (1e8, 1e8 - 1.0, -1e8), (-750.0, -750.0, -751.0)])
def test_log_sum_exp_is_exact_to_double_precision(loops, row):
    with mp.workdps(30):
        expected = float(mp.log(mp.fsum(mp.exp(mp.mpf(z)) for z in row)))
    assert loops["special"].log_sum_exp(*row) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("row", [(0.3,), (1.0, -2.0), (800.0, 799.0, -800.0), (0.0, 0.0, 0.0, 0.0)])
def test_softmax_is_exact_to_double_precision(loops, row):
    with mp.workdps(30):
        weights = [mp.exp(mp.mpf(z) - max(row)) for z in row]
        exact = [float(weight / mp.fsum(weights)) for weight in weights]
    assert loops["special"].softmax(*row) == pytest.approx(exact, rel=1e-15)


def test_rows_of_softmax_are_the_same_compiled(loops, compiled):
    """The one place where Numba writes into a tuple."""
    row = (0.7, -1.1, 2.3)
    assert compiled.special.softmax(*row) == pytest.approx(loops["special"].softmax(*row), rel=1e-15)
    pairs = tuple((z, z + 0.25) for z in row)
    found = np.array(compiled.intervals.softmax(*pairs))
    assert found == pytest.approx(np.array(loops["intervals"].softmax(*pairs)), rel=1e-14)


@pytest.mark.parametrize("name", [*LOGARITHMS, "log_sum_exp"])
def test_logarithms_are_the_same_compiled(name, loops, compiled):
    for z in (-1e8, -5.0, 0.3, 50.0):
        expected = getattr(loops["special"], name)(z)
        assert getattr(compiled.special, name)(z) == pytest.approx(expected, rel=1e-14)
        low, high = getattr(compiled.intervals, name)((z, z))
        assert low <= expected <= high


def hessian_of(centre, half):
    """Enclosure of value, gradient and Hessian whose entries are centre +- half."""
    upper = np.triu_indices(len(centre))
    rows = np.stack([centre[upper] - half[upper], centre[upper] + half[upper]], axis=1)
    return np.vstack([np.zeros((1 + len(centre), 2)), rows])


def test_convex_are_enclosures_of_positive_definite_matrices_alone(loops):
    rng = np.random.default_rng(4)
    convex, verdicts = loops["intervals"].is_hessian_positive_definite, []
    for size in (1, 2, 3, 4):
        for _ in range(40):
            root = rng.normal(size=(size, size))
            centre, half = root @ root.T + 0.2 * np.eye(size), np.abs(rng.normal(size=(size, size))) * 0.1
            half = half + half.T
            verdicts.append(convex(hessian_of(centre, half), np.empty((size, size))))
            for _ in range(20):
                sign = np.triu(rng.choice([-1.0, 1.0], size=(size, size)))
                member = centre + (np.triu(sign) + np.triu(sign, 1).T) * half
                assert not verdicts[-1] or np.linalg.eigvalsh(member)[0] > 0
    assert 20 < sum(verdicts) < 140
    with np.errstate(invalid="ignore"):
        assert not convex(hessian_of(np.eye(2), np.full((2, 2), math.inf)), np.empty((2, 2)))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_of_the_library_imports_numpy_math_and_numba_and_no_other_file_of_it(path):
    """Numba's cache keys a function by its own file: what another file held would be kept when that changes."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            modules.add(str(node.module).split(".")[0])
    assert modules <= {"math", "numpy", "numba"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_compiled_functions_are_cached_and_divide_by_zero_as_numpy_does(path):
    text = path.read_text(encoding="utf-8")
    flags = re.findall(r'@njit\((cache=True, error_model="numpy")(?:, inline="always"|, nogil=True)?\)\n', text)
    assert text.count("@njit") == len(flags)
    assert "fastmath" not in text
