"""Of every line of a generated solver it is known where it comes from, and what is named is there."""

import ast
import json
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import sympy as sp

import saddleforge as sf
import saddleforge.derive
import saddleforge.generated
from saddleforge.derive.catalogue import SHIPPED, catalogue_model
from saddleforge.derive.emit import line_origins, writer
from saddleforge.problems.catalogue import resolve_shared_file

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


def missing(origin: line_origins.LineOrigin) -> list[str]:
    """What a source names and is not there: DERIVE is called `derive` in the repository."""
    found = []
    for one in (origin.writer, *origin.formulas):
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


def heads(text: str) -> set[int]:
    """Numbers of the lines that a function begins with: its signature, the comment below it and its docstring."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            quoted = node.body[0].end_lineno if ast.get_docstring(node) else node.lineno + 1
            found |= set(range(node.lineno, (quoted or 0) + 1))
    return found


@cache
def known_sources(folder: str) -> dict[str, list[str]]:
    """The source of every line of the files of a solver, as its sources.json gives it."""
    known = json.loads(solver_text(f"{folder}/{line_origins.SOURCES_FILE}"))
    found = {}
    for file, changes in known["lines"].items():
        count = len(solver_text(f"{folder}/{file}").splitlines())
        ends = [first for first, _ in changes[1:]] + [count + 1]
        found[file] = [
            known["sources"][n] for (first, n), end in zip(changes, ends, strict=True) for _ in range(first, end)
        ]
        assert len(found[file]) == count, file
    return found


def sources_of(path: str) -> list[tuple[str, str]]:
    """(line, source) of a generated file."""
    model, structure, file = path.split("/", 2)
    return list(zip(solver_text(path).splitlines(), known_sources(f"{model}/{structure}")[file], strict=True))


def test_every_function_names_what_it_is_written_by_and_equations():
    for path in SOLVERS:
        found = origins(solver_text(path))
        assert found, path
        for name, line in found:
            origin = STAMP.fullmatch(line)
            assert origin, f"{path}: {name}: {line}"
            assert origin["equations"], f"{path}: {name}: {line}"
            if origin["source"].endswith(".jinja"):
                assert any(re.fullmatch(pattern, name) for pattern in patterns(origin["source"])), f"{path}: {name}"


def test_every_function_named_as_a_source_exists():
    for path in SOLVERS:
        for source in {source for _, source in sources_of(path)}:
            assert STAMP.fullmatch(f"# {source.partition(' -> ')[0]}"), f"{path}: {source}"
            assert missing(line_origins.LineOrigin.parse_origin_comment(source)) == [], f"{path}: {source}"


def test_a_comment_names_a_source_at_the_head_of_a_function_alone():
    for path in SOLVERS:
        lines = solver_text(path).splitlines()
        for above, line in pairwise(lines):
            assert above.startswith("def ") or not (STAMP.fullmatch(line) or line.strip().startswith("# -> ")), (
                f"{path}: {line}"
            )


FEW = ("linear_attention", "elastic_net_regression")


@sf.model(noise={"u": sf.DiscreteNoise((1, -1), lambda Y, flip: (1 - flip, flip))})
def labelled(X, Y, u, *, Q, flip=0.1, shift=sf.trained(0)):
    """Noise of few values, a number trained with the weights and a loss that holds their overlaps."""
    return sf.softplus(-u * sp.sign(Y[0, 0]) * (X[0, 0] - shift)) * (1 + Q[0][0, 0])


@pytest.mark.parametrize(
    "models", [FEW, pytest.param(("labelled", *SHIPPED), marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_text_of_templates_is_theirs_and_every_other_line_of_a_function_is_a_builders(models, monkeypatch):
    """All text of templates is tagged in them."""
    preprocess = line_origins.OriginCommentExtension.preprocess

    def tagging(self, source, name, filename=None):
        lines, quoted = [], False
        for line in source.splitlines():
            outside = re.sub(r"\{%.*?%\}|\{\{.*?\}\}", "", line).strip()
            words = quoted or outside.startswith('"""')
            quoted ^= line.count('"""') == 1
            own = outside and not words and not line.startswith("def ") and not line.endswith("%}")
            lines.append(f"{line}  # by {name}" if own else line)
        return preprocess(self, "\n".join(lines) + "\n", name, filename)

    monkeypatch.setattr(line_origins.OriginCommentExtension, "preprocess", tagging)
    writer._jinja_environment.cache_clear()
    try:
        solvers = [writer.generate(labelled if name == "labelled" else catalogue_model(name)) for name in models]
    finally:
        writer._jinja_environment.cache_clear()
    seen = set()
    for files in (solver.files for solver in solvers):
        known = json.loads(files[line_origins.SOURCES_FILE])
        for name, text in files.items():
            if name.endswith("model.py") or name == line_origins.SOURCES_FILE:
                continue
            changes, words = dict(known["lines"][name]), heads(text)
            writer_of, inside = "", False
            for number, line in enumerate(text.splitlines(), 1):
                if number in changes:
                    writer_of = line_origins.LineOrigin.parse_origin_comment(known["sources"][changes[number]]).writer
                inside = line.startswith("def ") or (inside and line.startswith("    "))
                _, tagged, template = line.partition("  # by ")
                seen.add(writer_of)
                if tagged:
                    assert writer_of == f"{line_origins.TEMPLATES}/{template}", f"{name}:{number}: {line}"
                elif inside and line.strip() and number not in words:
                    assert not writer_of.endswith(".jinja"), f"{name}:{number}: {line}"
    assert {
        f"derive/emit/sources/channel_source.py:{name}"
        for name in ("_ldl_factorisation_lines", "_newton_step_lines", "_lines_updating_lowest_minimum")
    } <= seen
    assert {
        f"{line_origins.TEMPLATES}/{name}.py.jinja" for name in ("nodes", "boltzmann", "penalty", "proximal")
    } <= seen


def test_a_line_is_that_of_the_last_mark_or_stamp_above_and_a_return_that_of_the_function():
    template, builder = (
        f"{line_origins.TEMPLATES}/x.py.jinja",
        "derive/emit/sources/x.py:f < derive/y.py:g, docs/theory.md (1.3)",
    )
    own = f"{template}, docs/theory.md (4.3)"
    text = [
        *(f"{line_origins.MARK}{template}", "import math", "def f(c):", f"    # {own}"),
        *(f"    # {builder}", "    # -> a", "    t = 2", "    a = t", "    b = 1"),
        *(f"{line_origins.MARK}{template}", "    a += b", f"    # {builder}", "    c = 2", "    return a", "N = 1"),
    ]
    assert line_origins.lines_with_origins("\n".join(text)) == [
        *(("import math", template), ("def f(c):", template), (f"    # {own}", own)),
        *(("    t = 2", f"{builder} -> a"), ("    a = t", f"{builder} -> a"), ("    b = 1", builder)),
        *(("    a += b", own), ("    c = 2", builder), ("    return a", own), ("N = 1", template)),
    ]


def test_the_origin_of_a_line_is_found_by_file_and_line(tmp_path):
    lines = line_origins.runs_of_equal_origin(
        [("a", "derive/emit/x.py:f < model m, docs/theory.md (1.3) -> b"), ("b", "derive/emit/x.py:g")]
    )
    (tmp_path / line_origins.SOURCES_FILE).write_text(line_origins.sources_json_text({"reduced/channel.py": lines}))
    found = [line_origins.find_line_origin(tmp_path / "reduced" / "channel.py", line) for line in (1, 2, 7)]
    assert found[0] == ("derive/emit/x.py:f", ("model m",), "docs/theory.md (1.3)", "b")
    assert found[1] == found[2] == ("derive/emit/x.py:g", (), "", "")
    assert line_origins.find_line_origin(tmp_path / "other.py", 1) is None


def test_templates_lay_out_no_line_without_its_comment():
    for path in sorted((DERIVE / "emit" / "templates").glob("*.jinja")):
        assert not re.search(r"\{% for line in |^ *\{\{ line \}\}", path.read_text(encoding="utf-8"), re.M), path.name


def test_common_subexpressions_stand_before_what_they_build():
    for path in SOLVERS:
        lines = sources_of(path)
        for n, (line, source) in enumerate(lines):
            result = line_origins.LineOrigin.parse_origin_comment(source).result
            if result and (n + 1 == len(lines) or lines[n + 1][1] != source):
                assert re.match(rf" *{re.escape(result)}(, \w+)* \+?= ", line), f"{path}:{n + 1}"


def test_no_staged_derivative_is_another_name_of_a_temporary():
    for path in SOLVERS:
        assert not re.findall(r"^ *[nlskjqm]\d+(?:_\d+)? = t(?:\d+|_row\d+_\d+)$", solver_text(path), re.M), path


@pytest.mark.parametrize("model", SHIPPED)
def test_lines_that_evaluate_the_loss_name_the_model_as_source(model):
    for path in (ROOT / model).glob("*/channel.py"):
        sources = sources_of(path.relative_to(ROOT).as_posix())
        lines = [line for line, _ in sources]
        for name in ("features", "objective", "loss", "loss_gradient"):
            begin = next(n for n, line in enumerate(lines) if line.startswith(f"def {name}("))
            end = next(n for n in range(begin, len(lines)) if lines[n].startswith("    return"))
            held = [source for _, source in sources[begin:end] if f"derive/models/{model}.py:{model}" in source]
            assert held or not any(" = " in line for line in lines[begin:end]), name


@pytest.mark.parametrize(
    ("path", "origin"),
    [
        ("attention_on_mixture/*/metric.py", "dot_product_attention.py:attention_test_error"),
        ("attention_on_mixture/*/reference.py", "dot_product_attention.py:attention_test_error"),
        ("hinge/*/metric.py", "logistic_regression.py:zero_one"),
        ("ridge_regression/*/reduced_metric/metric.py", "ridge_regression.py"),
    ],
)
def test_a_metric_names_the_function_that_it_is_written_by_wherever_that_is(path, origin):
    (file,) = ROOT.glob(path)
    sources = {
        source for _, source in sources_of(file.relative_to(ROOT).as_posix()) if "docs/theory.md (7.6)" in source
    }
    assert any(f"< derive/models/{origin}" in source for source in sources)


@pytest.mark.parametrize(
    ("path", "function", "equations"),
    [
        ("ridge_regression/*/prior.py", "free_entropy", "(4.2), (4.6), (7.3)"),
        ("ridge_regression/*/prior.py", "thermal_free_entropy", "(12.1), (12.3), (12.9)"),
        ("ridge_regression/*/reference.py", "free_entropy", "(4.2), (4.6), (7.3)"),
        ("lasso_regression/*/prior.py", "free_entropy", "(4.2), (4.5)"),
        ("lasso_regression/*/prior.py", "thermal_free_entropy", "(12.1), (12.2)"),
        ("lasso_regression/*/prior.py", "thermal_overlaps", "(6.3), (12.4), (12.5)"),
        ("elastic_net_regression/*/tangent.py", "moment_slopes", "(8.4)"),
        ("ridge_regression/*/bounds_loops.py", "_shortfall", "(4.3), (15.1)"),
    ],
)
def test_functions_cite_what_they_evaluate(path, function, equations):
    (file,) = ROOT.glob(path)
    assert dict(origins(file.read_text(encoding="utf-8")))[function].partition("/theory.md ")[2] == equations


@pytest.mark.parametrize("path", [path for path in SOLVERS if path.endswith("_loops.py")])
def test_where_a_reach_bounds_the_minimum_its_equation_is_cited(path):
    lines = solver_text(path).splitlines()
    for n, line in enumerate(lines):
        if re.match(r" +reach = .*\b(value|first|at_omega)\b", line):
            begin = next(k for k in range(n, 0, -1) if lines[k].startswith("def "))
            assert "(15.1)" in lines[begin + 1], f"{path}:{n + 1}"


def test_summands_of_the_averages_are_named_by_what_they_average():
    text = resolve_shared_file(ROOT / "dot_product_attention/l2_s1_t1_k1/channel_loops.py").read_text()
    assert "row_g_g_1_0_0 = g_1_0 * g_1_0" in text
    assert "row_g_dY_0_0_0 = dy_0_0 * g_0_0" in text
    prior = solver_text("ridge_regression/l1_s1_t1_k1/prior.py")
    assert "q_hat[n, 0, 0] = alpha * mean_g_g_0_0" in prior


def test_terms_of_a_finite_temperature_have_separate_names():
    """`thermal_free_entropy` adds to what `free_entropy` returns."""
    text = solver_text("ridge_regression/l1_s1_t1_k1/prior.py").partition("def thermal_free_entropy(")[2]
    text = text.partition("\ndef ")[0]
    assert re.findall(r"^ +(?:trace|entropic|penalty) \+= .*?(\w+)$", text, re.M) == [
        "fluctuation_n",
        "volume_n",
        "spread_n",
    ]
    assert not re.search(r"\b(?:trace|entropic|penalty)_n\b", text)
