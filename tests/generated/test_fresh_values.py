"""Every expression that reaches the generator has the value that is committed, whatever the order of its terms."""

from dataclasses import replace
from pathlib import Path

import mpmath as mp
import pytest
import sympy as sp

from saddleforge.derive import values
from saddleforge.derive.authoring.regulariser import Ridge
from saddleforge.derive.calculus import subexpressions
from saddleforge.derive.catalogue import SHIPPED, catalogue_model
from saddleforge.derive.emit import kernel, writer
from saddleforge.derive.emit.kernel import Kernel, RecordedKernel, make_kernel, record_kernels
from saddleforge.derive.emit.sources import channel
from saddleforge.derive.theory.free_entropy import free_entropy

FOLDER = Path(__file__).parent / "values"
x, y = sp.symbols("x y", real=True)
AMONG = {"value": x * y + 2, "slope": sp.exp(x) - 3 * y}


def committed(name: str) -> dict[str, values.Values]:
    return values.parse_values_file((FOLDER / f"{name}.txt").read_text(encoding="utf-8"))


def frozen(model: str) -> tuple[RecordedKernel, ...]:
    return writer.generate(catalogue_model(model)).frozen


def test_every_kernel_has_its_committed_values(solvers):
    found: dict[str, dict[str, values.Values]] = {}
    for solver in solvers:
        found.setdefault(solver.model, {})[solver.structure.folder_name] = values.values_of_kernel_results(
            solver.frozen
        )
    said = [
        f"{name}, {sentence}"
        for name in found
        for sentence in values.describe_value_changes(committed(name), found[name])
    ]
    assert not said, "not the committed values (`make values` rewrites them, if this is meant): " + "; ".join(said)


def test_every_model_and_the_theory_have_values():
    assert {path.stem for path in FOLDER.glob("*.txt")} == {*SHIPPED, "theory"}
    for name, structures in SHIPPED.items():
        assert len(committed(name)) == len(structures)


@pytest.mark.parametrize(
    "title",
    [pytest.param(title, marks=pytest.mark.slow if "trained" in title else ()) for title in committed("theory")],
)
def test_the_matrix_expressions_have_their_committed_values(title):
    found = {title: values.values_of_theory_expressions(*values.kinds_of_catalogue_models()[title])}
    assert values.describe_value_changes({title: committed("theory")[title]}, found) == []


def test_the_kinds_of_model_are_those_committed():
    assert set(values.kinds_of_catalogue_models()) == set(committed("theory"))


def test_a_value_is_that_of_the_expression():
    """30 digits of the average over the points, evaluated by SymPy itself."""
    with record_kernels() as record:
        make_kernel({"value": AMONG["value"]})
    with mp.workdps(50):
        points = [
            (values.pseudo_random_symbol_value("x", n), values.pseudo_random_symbol_value("y", n))
            for n in range(values.POINTS)
        ]
        mean = mp.fsum(a * b + 2 for a, b in points) / values.POINTS
    assert values.values_of_kernel_results(record) == {"value": (mp.nstr(mean, 30),)}


def test_numbers_depend_on_names_only_and_keep_to_their_symbols_domain():
    numbers = [values.pseudo_random_symbol_value(name, point) for name in "abcdefgh" for point in range(values.POINTS)]
    assert numbers == [
        values.pseudo_random_symbol_value(name, point) for name in "abcdefgh" for point in range(values.POINTS)
    ]
    assert len(set(numbers)) == len(numbers)
    assert {int(mp.sign(number)) for number in numbers} == {-1, 1}
    assert all(0.25 <= abs(number) <= 1.75 for number in numbers)
    assert {int(values.pseudo_random_symbol_value(f"k_{n}", integer=True)) for n in range(9)} == {0, 1}
    assert all(values.pseudo_random_symbol_value(name, positive=True) > 0 for name in "abcdefgh")


def mutated(record: RecordedKernel, result: str) -> RecordedKernel:
    """The same kernel with one result's sign flipped."""
    results = tuple((n, ("mul", ("number", -1, 1), node) if n == result else node) for n, node in record.kernel.results)
    return replace(record, kernel=Kernel(record.kernel.statements, results))


def test_a_sign_flipped_in_any_result_of_any_kernel_fails_by_its_name(solvers):
    """For a kernel that decides no other value, the kernels with a result of its name are evaluated, too."""
    model = "lasso_regression"
    (solver,) = [s for s in solvers if s.model == model]
    key = solver.structure.folder_name
    listed = committed(model)[key]
    for record in solver.frozen:
        own = {name for name, _ in record.kernel.results}
        inner_records = [
            r for r in solver.frozen if record.inner or r.inner or own & {name for name, _ in r.kernel.results}
        ]

        def found_differences(kernels, record=record, own=own):
            """What has changed of all values, or of this record's."""
            found = values.values_of_kernel_results(kernels)
            known, found = ({n: v for n, v in of.items() if record.inner or n in own} for of in (listed, found))
            return values.describe_value_changes({key: known}, {key: found})

        assert found_differences(inner_records) == []
        for name, node in record.kernel.results:
            if node == ("number", 0, 1):
                continue
            said = found_differences([mutated(r, name) if r is record else r for r in inner_records])
            assert said, name
            if not record.inner:
                assert any(sentence.startswith(f"{key}: {name} was") for sentence in said), name


def test_a_wrong_term_of_the_free_entropy_fails_by_its_name(monkeypatch):
    right = free_entropy()
    p = right.symbols
    wrong = replace(right, expression=right.expression.xreplace({sp.Trace(p.V_hat * p.q): -sp.Trace(p.V_hat * p.q)}))
    assert wrong != right
    monkeypatch.setattr(values, "free_entropy", lambda **_: wrong)
    said = values.describe_value_changes(
        {"ridge": committed("theory")["ridge"]}, {"ridge": values.values_of_theory_expressions(Ridge(), False, False)}
    )
    named = {sentence.split(" was ")[0] for sentence in said}
    assert {"ridge: Phi", "ridge: q [0, 0]", "ridge: d Phi / d q [0, 0]"} <= named
    assert not any(name.startswith("ridge: theta ") for name in named)


@pytest.mark.parametrize(
    "model", ["logistic_regression", pytest.param("elastic_net_regression", marks=pytest.mark.slow)]
)
def test_another_order_of_terms_changes_the_text_and_no_value(model, monkeypatch, solvers):
    (solver,) = [s for s in solvers if s.model == model]
    terms, factors, extract = (
        sp.Expr.as_ordered_terms,
        sp.Mul.as_ordered_factors,
        subexpressions.extract_maximal_subexpressions,
    )

    def backwards(expressions, inside, outside, prefix):
        """Features counted from the other end."""
        definitions, rewritten = extract(expressions, inside, outside, prefix)
        names = [symbol for symbol, _ in definitions]
        turned = dict(zip(names, reversed(names), strict=True))
        return [(turned[s], e) for s, e in reversed(definitions)], [e.xreplace(turned) for e in rewritten]

    monkeypatch.setattr(sp.Expr, "as_ordered_terms", lambda e, *a, **k: terms(e, *a, **k)[::-1])
    monkeypatch.setattr(sp.Mul, "as_ordered_factors", lambda e, *a, **k: list(factors(e, *a, **k))[::-1])
    monkeypatch.setattr(channel, "extract_maximal_subexpressions", backwards)
    monkeypatch.setattr(
        kernel, "_convert_to_statements", kernel._convert_to_statements.__wrapped__
    )  # what is known was lowered in the usual order
    other = writer.generate(catalogue_model(model))
    assert other.files["channel.py"] != solver.files["channel.py"]
    assert (
        values.describe_value_changes(
            committed(model), {solver.structure.folder_name: values.values_of_kernel_results(other.frozen)}
        )
        == []
    )


def test_values_survive_being_written_and_read():
    parts = {"first": {"a [0, 1]": ("1.5", "2.25"), "b": ("-3.0e-7",)}, "second": {"a": ("1.0",)}}
    assert values.parse_values_file(values.format_values_file(parts)) == parts
    assert values.describe_value_changes(parts, parts) == []


def test_a_changed_missing_or_new_value_is_named_and_rounding_is_not():
    digits = "1.00000000000000000000000000001"
    assert values.describe_value_changes({"m": {"a": ("1.0",)}}, {"m": {"a": (digits,)}}) == []
    assert values.describe_value_changes({"m": {"a": ("1.0",)}}, {"m": {"a": ("1.0000000001",)}}) == [
        "m: a was 1.0; it is 1.0000000001"
    ]
    assert values.describe_value_changes({"m": {"a": ("1.0",)}}, {"m": {}}) == ["m: a was 1.0; it is zero or absent"]
    assert values.describe_value_changes({}, {"m": {"a": ("1.0", "2.0")}}) == [
        "m: a was zero or absent; it is 1.0, 2.0"
    ]


def test_writing_mends_the_folder_and_touches_nothing_else(tmp_path, solvers, monkeypatch):
    monkeypatch.setattr(values, "theory_values_of_all_model_kinds", lambda: {"ridge": {"Phi": ("1.0",)}})
    few = [s for s in solvers if s.model in ("hinge", "dot_product_attention")]
    assert sorted(values.write_expression_value_files(tmp_path, few)) == [
        "dot_product_attention.txt",
        "hinge.txt",
        "theory.txt",
    ]
    assert (tmp_path / "hinge.txt").read_text() == (FOLDER / "hinge.txt").read_text()
    (tmp_path / "hinge.txt").write_text("")
    (tmp_path / "perceptron.txt").write_text("")
    assert sorted(values.write_expression_value_files(tmp_path, few)) == ["hinge.txt", "perceptron.txt"]
    assert values.write_expression_value_files(tmp_path, few) == []
