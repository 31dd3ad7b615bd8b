"""Every line of a generated solver says where it comes from, and what it names is there."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import sympy as sp

import saddleforge as sf
import saddleforge.derive
import saddleforge.generated
from saddleforge.derive.catalogue import SHIPPED, catalogue_model
from saddleforge.derive.emit import stamps, writer

ROOT = Path(saddleforge.generated.__path__[0])
DERIVE = Path(saddleforge.derive.__path__[0])
SOLVERS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("*/*/**/*.py"))
# Equations are looked up by tests/docs, as everywhere else.
EQUATIONS = r"docs/theory\.md \(\d+\.\d+\)(?:(?:, | to )\(\d+\.\d+\))*"
FUNCTION = r"derive/[\w/]+\.py(?::\w+(?:\.\w+)*)?"
BUILDER = rf"derive/emit/[\w/]+\.py:\w+(?: < (?:{FUNCTION}|model [\w +-]+))*"
TEMPLATE = r"derive/emit/templates/\w+\.py\.jinja"
STAMP = re.compile(rf" *# (?P<source>{TEMPLATE}|{BUILDER})(?:, (?P<equations>{EQUATIONS}))?")


def solver_text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def functions(file: str) -> frozenset[str]:
    """Names of the functions of a file of derive, and of its methods with their class."""
    found = set()
    for node in ast.parse((DERIVE.parent / file).read_text(encoding="utf-8")).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        found |= {prefix + one.name for one in inside if isinstance(one, ast.FunctionDef)}
    return frozenset(found)


def missing(source: str) -> list[str]:
    """What a stamp names and is not there: DERIVE is called `derive` in the repository."""
    found = []
    for one in source.split(" < "):
        if one.startswith("model "):
            continue
        file, _, function = one.partition(":")
        path = file.removeprefix("derive/")
        if not (DERIVE / path).exists() or (function and function not in functions(f"{DERIVE.name}/{path}")):
            found.append(one)
    return found


@cache
def patterns(template: str) -> list[str]:
    """What the functions of a template may be called."""
    text = (DERIVE / template.removeprefix("derive/")).read_text(encoding="utf-8")
    return [re.sub(r"\{\{.*?\}\}", r"\\w*", name) for name in re.findall(r"^def ((?:\{\{.*?\}\}|\w)+)\(", text, re.M)]


def origins(text: str) -> list[tuple[str, str]]:
    """(function, line under its signature) of all functions."""
    lines = text.splitlines()
    tree = ast.parse(text)
    return [(node.name, lines[node.lineno]) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def read(text: str) -> Iterator[tuple[int, str, str]]:
    """Number, line and source of every line of a function but for docstrings, stamps and what follows a return: as one
    reads who sees the file for the first time."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        quoted = node.body[0] if ast.get_docstring(node, clean=False) else None
        words = range(quoted.lineno, (quoted.end_lineno or 0) + 1) if quoted else ()
        holding: list[tuple[int, str]] = []
        for number in range(node.lineno + 1, (node.end_lineno or 0) + 1):
            line = lines[number - 1]
            depth = len(line) - len(line.lstrip())
            if stamp := STAMP.fullmatch(line):
                holding = [one for one in holding if one[0] < depth] + [(depth, stamp["source"])]
            elif number not in words:
                holding = [one for one in holding if one[0] <= depth]
                if line.startswith(" " * depth + "return"):
                    holding = [one for one in holding if one[0] < depth] + [(depth, "")]
                if holding[-1][1]:
                    yield number, line, holding[-1][1]


@pytest.mark.parametrize("path", SOLVERS)
def test_every_function_names_what_it_is_written_by_and_equations(path):
    found = origins(solver_text(path))
    assert found
    for name, line in found:
        origin = STAMP.fullmatch(line)
        assert origin, f"{name}: {line}"
        assert origin["equations"], f"{name}: {line}"
        if origin["source"].endswith(".jinja"):
            assert any(re.fullmatch(pattern, name) for pattern in patterns(origin["source"])), name


@pytest.mark.parametrize("path", SOLVERS)
def test_what_a_comment_names_is_there(path):
    lines = [line for line in solver_text(path).splitlines() if "derive/emit/" in line and line.lstrip()[0] == "#"]
    assert lines
    for line in lines:
        stamp = STAMP.fullmatch(line)
        assert stamp, line
        assert missing(stamp["source"]) == [], line


FEW = ("linear_attention", "elastic_net_regression")


@sf.model(noise={"u": sf.DiscreteNoise((1, -1), lambda Y, flip: (1 - flip, flip))})
def labelled(X, Y, u, *, Q, flip=0.1, shift=sf.trained(0)):
    """Noise of few values, a number trained with the weights and a loss that holds their overlaps."""
    return sf.softplus(-u * sp.sign(Y[0, 0]) * (X[0, 0] - shift)) * (1 + Q[0][0, 0])


@pytest.mark.parametrize(
    "models", [FEW, pytest.param(("labelled", *SHIPPED), marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_after_the_lines_of_a_builder_comes_a_comment_a_dedent_or_a_return(models, monkeypatch):
    """All text of templates is tagged in them: no tagged line stands under a builder, every other line does."""
    preprocess = stamps.Origins.preprocess

    def tagging(self, source, name, filename=None):
        lines, quoted = [], False
        for line in source.splitlines():
            outside = re.sub(r"\{%.*?%\}|\{\{.*?\}\}", "", line).strip()
            words = quoted or outside.startswith('"""')
            quoted ^= line.count('"""') == 1
            own = outside and not words and not line.startswith("def ") and not line.endswith("%}")
            lines.append(f"{line}  # by {name}" if own else line)
        return preprocess(self, "\n".join(lines) + "\n", name, filename)

    monkeypatch.setattr(stamps.Origins, "preprocess", tagging)
    writer._environment.cache_clear()
    try:
        solvers = [writer.generate(labelled if name == "labelled" else catalogue_model(name)) for name in models]
    finally:
        writer._environment.cache_clear()
    seen = set()
    for files in (solver.files for solver in solvers):
        for name, text in files.items():
            if name == "model.py":
                continue
            for number, line, source in read(text):
                _, tagged, template = line.partition("  # by ")
                seen.add(source.partition(" < ")[0])
                expected = f"{stamps.TEMPLATES}/{template}"
                assert source == expected if tagged else not source.endswith(".jinja"), f"{name}:{number}: {line}"
    assert {
        f"derive/emit/sides/channel_source.py:{name}" for name in ("_factor_lines", "_solve_lines", "_keep")
    } <= seen
    assert {f"{stamps.TEMPLATES}/{name}.py.jinja" for name in ("nodes", "boltzmann", "penalty", "proximal")} <= seen


def test_text_that_goes_on_after_a_block_is_marked_where_it_would_be_taken_for_the_blocks():
    block = "    # derive/emit/sides/x.py:f < derive/y.py:g, docs/theory.md (1.3)\n    a = 1"
    mark = "#@ derive/emit/templates/x.py.jinja"
    head = f"{mark}\n# Generated\n\n\ndef f(c):\n    # derive/emit/templates/x.py.jinja, docs/theory.md (1.3)\n"
    for rest, inserted in (
        ("    return a\n", False),
        ("    b = a\n", True),
        ("    # derive/emit/sides/x.py:h\n    b = a\n", False),
        ("    for b in a:\n        pass\n", True),
        ("    # words\n", True),
        ("\n\ndef g(c):\n    # derive/emit/templates/x.py.jinja\n    b = 1\n", False),
    ):
        found = stamps.traced(f"{head}{block}\n{mark}\n{rest}")
        assert (f"    a = 1\n    # {stamps.TEMPLATES}/x.py.jinja\n" in found) == inserted, rest
        assert "#@" not in found
    nested = stamps.traced(
        f"{head}    if c:\n{mark}\n        # derive/emit/sides/x.py:f\n        a = 1\n{mark}\n    b = 1\n"
    )
    assert nested.endswith("        a = 1\n    b = 1\n")


def test_templates_lay_out_no_line_without_its_comment():
    for path in sorted((DERIVE / "emit" / "templates").glob("*.jinja")):
        assert not re.search(r"\{% for line in |^ *\{\{ line \}\}", path.read_text(encoding="utf-8"), re.M), path.name


@pytest.mark.parametrize("path", SOLVERS)
def test_common_subexpressions_stand_before_what_they_build(path):
    lines = [line.strip() for line in solver_text(path).splitlines()]
    for n, line in enumerate(lines):
        if line.startswith("# -> "):
            name = line.removeprefix("# -> ")
            built = next(k for k in range(n + 1, len(lines)) if re.match(rf"{re.escape(name)}(, \w+)* \+?= ", lines[k]))
            assert not [one for one in lines[n + 1 : built] if one.startswith(("#", "def ", "return"))], (
                f"{path}:{n + 1}"
            )


@pytest.mark.parametrize("path", SOLVERS)
def test_no_staged_derivative_is_another_name_of_a_temporary(path):
    assert not re.findall(r"^ *[nlskjqm]\d+(?:_\d+)? = t(?:\d+|_row\d+_\d+)$", solver_text(path), re.M)


@pytest.mark.parametrize("model", SHIPPED)
def test_what_evaluates_the_loss_names_the_model(model):
    for path in (ROOT / model).glob("*/channel.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        for name in ("features", "objective", "loss", "loss_gradient"):
            begin = next(n for n, line in enumerate(lines) if line.startswith(f"def {name}("))
            end = next(n for n in range(begin, len(lines)) if lines[n].startswith("    return"))
            held = [line for line in lines[begin:end] if f"derive/models/{model}.py:{model}" in line]
            assert held or not any(" = " in line for line in lines[begin:end]), name


@pytest.mark.parametrize(
    ("path", "origin"),
    [
        ("attention_on_mixture/*/metric.py", "dot_product_attention.py:metric"),
        ("attention_on_mixture/*/reference.py", "dot_product_attention.py:metric"),
        ("hinge/*/metric.py", "logistic_regression.py:zero_one"),
        ("ridge_regression/*/reduced_metric/metric.py", "ridge_regression.py"),
    ],
)
def test_a_metric_names_the_function_that_it_is_written_by_wherever_that_is(path, origin):
    (file,) = ROOT.glob(path)
    stamped = [line for line in file.read_text(encoding="utf-8").splitlines() if "docs/theory.md (7.6)" in line]
    assert any(f"< derive/models/{origin}" in line for line in stamped)


@pytest.mark.parametrize(
    ("path", "function", "equations"),
    [
        ("ridge_regression/*/prior.py", "free_entropy", "(4.2), (4.6), (7.3)"),
        ("ridge_regression/*/prior.py", "thermal_free_entropy", "(12.1), (12.3), (12.9)"),
        ("ridge_regression/*/reference.py", "free_entropy", "(4.2), (4.6), (7.3)"),
        ("lasso_regression/*/prior.py", "free_entropy", "(4.2), (4.5)"),
        ("lasso_regression/*/prior.py", "thermal_free_entropy", "(12.1), (12.2)"),
        ("lasso_regression/*/prior.py", "thermal_overlaps", "(6.3), (12.4), (12.5)"),
        ("lasso_regression/*/tangent.py", "moment_slopes", "(8.4)"),
        ("hinge/*/bounds.py", "_shortfall", "(4.3), (15.1)"),
    ],
)
def test_functions_cite_what_they_evaluate(path, function, equations):
    (file,) = ROOT.glob(path)
    assert dict(origins(file.read_text(encoding="utf-8")))[function].partition("/theory.md ")[2] == equations


@pytest.mark.parametrize("path", [path for path in SOLVERS if path.endswith(("/channel.py", "/thermal.py"))])
def test_where_a_reach_bounds_the_minimum_its_equation_is_cited(path):
    lines = solver_text(path).splitlines()
    for n, line in enumerate(lines):
        if re.match(r" +reach = .*\b(value|first|at_omega)\b", line):
            begin = next(k for k in range(n, 0, -1) if lines[k].startswith("def "))
            assert "(15.1)" in lines[begin + 1], f"{path}:{n + 1}"


def test_summands_of_the_averages_are_named_by_what_they_average():
    text = solver_text("dot_product_attention/l2_s1_t1_k1/channel.py")
    assert "row_g_g_1_0_0 = g_1_0 * g_1_0" in text
    assert "row_g_dY_0_0_0 = dy_0_0 * g_0_0" in text
    prior = solver_text("dot_product_attention/l2_s1_t1_k1/prior.py")
    assert "q_hat[n, 0, 0] = alpha * mean_g_g_0_0" in prior


def test_what_a_temperature_adds_has_names_of_its_own():
    """`thermal_free_entropy` adds to what `free_entropy` returns."""
    text = solver_text("ridge_regression/l1_s1_t1_k1/prior.py").partition("def thermal_free_entropy(")[2]
    text = text.partition("\ndef ")[0]
    assert re.findall(r"^ +(?:trace|entropic|penalty) \+= .*?(\w+)$", text, re.M) == [
        "fluctuation_n",
        "volume_n",
        "spread_n",
    ]
    assert not re.search(r"\b(?:trace|entropic|penalty)_n\b", text)
