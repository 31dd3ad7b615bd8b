"""A model that is not well posed says which of its fields is at fault."""

import re

import pytest
import sympy as sp

from saddleforge.derive.authoring.language import box, half_square, softplus, square
from saddleforge.derive.authoring.model import Model, model
from saddleforge.derive.authoring.parameters import (
    DiscreteNoise,
    GaussianNoise,
    Parameter,
    Start,
    Structure,
    structural,
    trained,
)
from saddleforge.derive.authoring.regulariser import Ridge, penalty
from saddleforge.derive.authoring.tokens import Tokens, isotropic_tokens
from saddleforge.derive.emit.sources.metadata_source import metadata_file_text
from saddleforge.derive.emit.writer import generate
from saddleforge.derive.errors import ModelError

TRAINED = trained(1)


def ridge(X, Y):
    """Linear regression.

    Source: any textbook
    """
    return half_square(Y[0, 0] - X[0, 0])


def fault(message: str):
    return pytest.raises(ModelError, match=message)


def law_with(**wrong):
    """An unstructured law at L = t = K = 1 with one field replaced."""

    def law(structure):
        right = {
            "weights": [1],
            "covariance": [[1]],
            "gram": [[[0, 0], [0, 1]]],
            "labels": [1],
            "teacher_means": [[0]],
        }
        return Tokens(**(right | wrong))

    return law


def test_the_docstring_gives_summary_and_source():
    made = model()(ridge)
    assert (made.name, made.summary, made.source) == ("ridge", "Linear regression.", "any textbook")


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda X, Y: X[0, 0] * sp.Symbol("stray"), r"loss uses stray, which is not a field, a noise or a parameter"),
        (lambda X, Y: sp.Matrix([[X[0, 0], Y[0, 0]]]), r"loss is a \(1, 2\) matrix, expected a number"),
        (lambda X, Y: Y[0, 0] ** 2, r"loss does not depend on X"),
        (lambda X, Y: None, r"loss returned None, expected a SymPy expression"),
        (lambda X, Y: X[0, 5], r"loss failed at l1_s1_t1_k1: IndexError"),
        (lambda X, Z: X[0, 0] * Z, r"loss asks for 'Z', which is neither one of X, Y, k, Q nor a parameter"),
        (lambda X, Y, alpha=1: X[0, 0] * alpha, r"parameter name 'alpha' is not allowed"),
        (lambda X, Y, tokens=1: X[0, 0] * tokens, r"parameter name 'tokens' is not allowed"),
        (lambda X, Y, lambda_=1: X[0, 0] * lambda_, r"parameter 'lambda_' is also the regulariser's"),
        (
            lambda X, Y, k=0.5: X[0, 0] * k,
            r"loss declares a parameter 'k', a name that is reserved for one of its arguments",
        ),
        (
            lambda X, Y=2: X[0, 0] * Y,
            r"loss declares a parameter 'Y', a name that is reserved for one of its arguments \(X, Y",
        ),
        (lambda X, Q=2: X[0, 0] * Q, r"loss declares a parameter 'Q'"),
        (lambda X, structure=2: X[0, 0] * structure, r"loss declares a parameter 'structure'"),
        (lambda X, Y, h=1: X[0, 0] * h, r"parameter name 'h' is not allowed"),
        (lambda X, Y, spectrum=1: X[0, 0] * spectrum, r"parameter name 'spectrum' is not allowed"),
        (lambda X, Y, a=1, a_=2: X[0, 0] * a * a_, r"'a' and 'a_' would be one symbol, a_"),
        (lambda X, Y, a=(1, 2), a_0=2: X[0, 0] * a[0] * a_0, r"'a' and 'a_0' would be one symbol, a_0_"),
        (lambda X, Y, a=1, a_=TRAINED: X[0, 0] * a * a_, r"'a' and 'a_' would be one symbol, a_"),
        (lambda X, Y, lambda_=TRAINED: X[0, 0] * lambda_, r"parameter 'lambda_' is also the regulariser's"),
    ],
)
def test_an_invalid_loss_is_refused(loss, message):
    with fault(message):
        model(name="broken")(loss)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"covariance": [[1, 1]]}, r"law\.covariance has shape \(1, 2\), expected \(1, 1\)"),
        ({"gram": [[[1]]]}, r"law\.gram has shape \(1, 1, 1\), expected \(1, 2, 2\)"),
        ({"labels": ["1/2", "1/2"]}, r"law\.labels has shape \(2,\), expected \(1,\)"),
        ({"teacher_means": [[0, 0]]}, r"law\.teacher_means has shape \(1, 2\), expected \(1, 1\)"),
        ({"weights": ["1/2", "1/2"]}, r"law\.covariance has shape \(1, 1\), expected \(2, 1\)"),
        ({"covariance": [[sp.Symbol("stray")]]}, r"law\.covariance uses stray"),
    ],
)
def test_an_invalid_law_of_tokens_is_refused(field, message):
    with fault(message):
        model(law=law_with(**field))(ridge)


def overlapping(x, **others):
    """One cluster whose tau overlaps the teacher by x, in the Gram matrix."""
    return law_with(gram=[[[1, x], [x, 1]]], **others)


@pytest.mark.parametrize(
    ("overlap", "others", "expected"),
    [
        ("1/2", {"teacher_means": None}, "1/2"),
        ("1/2", {"teacher_means": [["1/2"]]}, "1/2"),
        ("1/2", {"teacher_means": [[0]], "encodings_taught": [["1/2"]]}, 0),
        ("1/2", {"teacher_means": None, "encodings_taught": [["1/3"]]}, "1/6"),
    ],
)
def test_teacher_means_follow_from_what_is_said_of_the_encodings(overlap, others, expected):
    law = model(law=overlapping(overlap, **others))(ridge).at().law
    assert law["teacher_means"] == ((sp.Rational(expected),),)


@pytest.mark.parametrize("means", ["1/3", 0, "-1/2"])
def test_teacher_means_that_contradict_the_gram_matrix_are_refused(means):
    """A mean that overlaps the teacher in one place and not in the other is another problem than meant."""
    with fault(
        rf"law.teacher_means\[0\]\[0\] is {means}, but the rest of the law gives 1/2: .*, give encodings_taught"
    ):
        model(law=overlapping("1/2", teacher_means=[[means]]))(ridge)


def test_teacher_means_may_be_written_in_another_form_than_the_one_that_follows():
    def law(structure, *, angle=0.3):
        return Tokens([1], [[1]], [[[1, sp.sin(2 * angle)], [sp.sin(2 * angle), 1]]], teacher_means=[[given(angle)]])

    given = lambda angle: 2 * sp.sin(angle) * sp.cos(angle)  # noqa: E731
    assert model(law=law)(ridge)
    given = lambda angle: 2 * sp.sin(angle)  # noqa: E731
    with fault("law.teacher_means"):
        model(law=law)(ridge)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (
            {"means": [[1, 0]]},
            r"law.means has shape \(1, 2\), expected \(1, 1\) .* or \(1, 1, 1\) \(one matrix for each spectral atom",
        ),
        ({"teacher": None}, r"law: teacher is missing"),
        ({"encodings": sp.eye(2)}, r"law: covariance has 1 columns, which are not tokens x clusters for the 2 tokens"),
        ({"gram": [sp.eye(2)]}, r"law.gram contains law.teacher already"),
        ({"taught": [[1, 1]]}, r"law.taught has shape \(1, 2\)"),
    ],
)
def test_invalid_products_of_vectors_are_refused(field, message):
    products = {"weights": [1], "covariance": [[1]], "teacher": [[1]]} | field
    with fault(message):
        model(law=lambda structure: Tokens(**products))(ridge)


def test_the_products_of_vectors_are_those_of_explicit_vectors():
    """Two tokens of two clusters, two teacher columns, two spectral atoms, in five dimensions."""
    rows = [[sp.Rational((7 * i + 3 * j * j + i * j) % 11 - 5, 7) for j in range(5)] for i in range(16)]
    mu, p, pi = ([sp.Matrix(rows[8 * a : 8 * a + 8])[i:j, :] for a in range(2)] for i, j in ((0, 4), (4, 6), (6, 8)))
    products = {
        "means": [m * m.T for m in mu],
        "encodings": [e * e.T for e in p],
        "along": [m * e.T for m, e in zip(mu, p, strict=True)],
        "teacher": [w * w.T for w in pi],
        "taught": [m * w.T for m, w in zip(mu, pi, strict=True)],
        "encodings_taught": [e * w.T for e, w in zip(p, pi, strict=True)],
    }
    weights = [sp.Rational(1, 3), sp.Rational(2, 3)]
    arrays = Tokens(weights, [[1] * 4] * 2, labels=["1/4"] * 4, **products).exact_arrays_of_law()
    for a in range(2):
        tau = mu[a] + sp.Matrix([p[a][l, :] for l in (0, 0, 1, 1)])
        z = tau.col_join(pi[a])
        assert sp.Matrix(arrays["gram"][a]) == z * z.T
    m_star = weights[0] * mu[0] * pi[0].T + weights[1] * mu[1] * pi[1].T
    assert sp.Matrix(arrays["teacher_means"]) == m_star


def test_a_law_must_be_one_of_tokens():
    with fault(r"law must return Tokens, not dict"):
        model(law=lambda structure: {})(ridge)


def noisy(X, Y, u, *, Delta=0.25):
    return half_square(Y[0, 0] + u - X[0, 0])


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (GaussianNoise("Gamma0"), r"noise u: variance uses Gamma0"),
        (DiscreteNoise((-1, 1), ("1/2", "1/3")), r"noise u: the probabilities add up to 0.833333; they must add"),
        (DiscreteNoise((-1, 0, 1), ("1/2", "1/2")), r"noise u has 3 values and 2 probabilities"),
        (DiscreteNoise((-1, 1), ("p", "1-p")), r"noise u: probabilities uses? p"),
        (DiscreteNoise((-1, "w"), ("1/2", "1/2")), r"noise u: values uses? w"),
        ("gaussian", r"noise 'u' must be GaussianNoise\(variance\) or DiscreteNoise"),
    ],
)
def test_an_invalid_noise_is_refused(noise, message):
    with fault(message):
        model(noise={"u": noise})(noisy)


@pytest.mark.parametrize("count", [6, 14])
def test_probabilities_of_many_functions_add_up_to_one(count):
    """One minus the other one, and both written out; a wrong sum is refused with the point at which it was seen."""

    def share(Y, sign):
        arguments = [(n + 1) * Y[0] + sp.Rational(n, 3) for n in range(count)]
        return sum(1 / (1 + sp.exp(-sign * z)) for z in arguments) / count

    for probabilities in (lambda Y: (share(Y, 1), 1 - share(Y, 1)), lambda Y: (share(Y, 1), share(Y, -1))):
        at = model(noise={"u": DiscreteNoise((-1, 1), probabilities)})(noisy).at()
        assert at.noise["u"][1].values == (-1, 1)
    with fault(r"noise u: the probabilities add up to \S+ at y_0_0 = \S+; they must add up to 1 at every Y"):
        model(noise={"u": DiscreteNoise((-1, 1), lambda Y: (share(Y, 1), share(Y, -1) / 2))})(noisy)


def test_a_parameter_called_like_a_noise_is_refused():
    with fault(r"metric declares a parameter 'u', a name that is reserved for one of its arguments \(h, Y, u, k"):
        model(noise={"u": GaussianNoise(1)}, metric=lambda h, u=0.5: u * h[0])(lambda X, Y: X[0] - Y[0])


@pytest.mark.parametrize("name", ["", "two/layers", "..", "1st", "a\nb", "pseudo.huber"])
def test_a_model_has_a_name_that_files_can_have(name):
    with fault(r"model name '.*' is not allowed"):
        Model(name=name, loss=ridge, sizes={"tokens": 1, "student_rank": 1, "teacher_rank": 1, "clusters": 1})


def test_discrete_noise_may_depend_on_the_teacher_and_on_parameters():
    flips = DiscreteNoise(
        (-1, 1), lambda Y, Delta: [Delta * sp.exp(-(Y[0, 0] ** 2)), 1 - Delta * sp.exp(-(Y[0, 0] ** 2))]
    )
    symbol, law = model(noise={"u": flips})(noisy).at().noise["u"]
    assert symbol.name == "u_u"
    assert sum(law.probabilities) == 1
    assert {str(s) for s in law.probabilities[0].free_symbols} == {"Delta_", "y_0_0"}


def test_probabilities_of_a_noise_are_expressions_in_names_of_parameters():
    named, given = (
        model(noise={"u": DiscreteNoise((-1, "Delta"), probabilities)})(noisy).at().noise["u"][1]
        for probabilities in (("1 - Delta", "Delta"), lambda Y, Delta: (1 - Delta, Delta))
    )
    assert named == given
    assert {str(s) for s in named.values[1].free_symbols} == {"Delta_"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss_kinks": lambda X, Y: X[0, 0] ** 2 - 1}, r"loss_kinks: .* must be affine in the fields X and Y"),
        ({"loss_kinks": lambda X, Y: X[0, 0] * Y[0, 0]}, r"loss_kinks: .* must be affine in the fields X and Y"),
        (
            {"metric_kinks": lambda h, Y: sp.Integer(1)},
            r"metric_kinks: .* must be affine .* and contain at least one of them",
        ),
        ({"metric_kinks": lambda h: h[0, 0] + sp.Symbol("stray")}, r"metric_kinks uses stray"),
        ({"metric": lambda h, Y: h}, None),
        ({"metric": lambda h, Y: sp.Symbol("stray")}, r"metric uses stray"),
        ({"baseline": lambda B, Y: square(Y[0, 0] - B[0, 0] ** 2)}, r"baseline's error must be quadratic in B"),
        ({"starts": {"semantic": 1}}, r"start 'semantic' must be a Start, .* not int"),
        (
            {"starts": {"semantic": Start(teacher=(1, 2))}},
            r"start 'semantic': teacher .* shape \(2,\); a number or",
        ),
        ({"starts": {"semantic": Start(encodings=((1, 0),))}}, r"start 'semantic': encodings .* shape \(1, 2\)"),
        ({"starts": {"semantic": Start(noise=(1,))}}, r"start 'semantic': noise .* shape \(1,\); a number is expected"),
        ({"regulariser": "ridge"}, r"regulariser must be Ridge\(0\.1\)"),
    ],
)
def test_another_invalid_field_of_a_model_is_refused(fields, message):
    if message is None:  # a 1 x 1 matrix is a number
        assert model(**fields)(ridge).at().metric == sp.Symbol("x_0_0", real=True)
        return
    with fault(message):
        model(name="broken", **fields)(ridge)


def test_a_start_may_have_a_column_a_token_or_a_column_a_cluster():
    structure = Structure(tokens=2, student_rank=1, teacher_rank=1, clusters=2)
    for columns in (2, 4):
        assert Start(encodings=((1,) * columns,)).exact_coefficients(structure)["encodings"] == ((1,) * columns,)
    with pytest.raises(ModelError, match=r"encodings .* shape \(1, 3\); a number or a 1 x 2 matrix or a 1 x 4 matrix"):
        Start(encodings=((1, 1, 1),)).exact_coefficients(structure)


def test_an_error_names_the_model():
    with fault(r"^model broken: "):
        model(name="broken")(lambda X, Y: Y[0, 0])


def test_sizes_are_fixed_or_bounded():
    made = model(tokens=structural(2, low=2, high=4), law=isotropic_tokens)(lambda X, Y: half_square(X[0, 0] - Y[1, 0]))
    assert made.structure(tokens=3) == Structure(3, 1, 1, 1)
    with fault(r"student_rank of model lambda is fixed at 1; it cannot be set to 2"):
        made.structure(student_rank=2)
    for size in (1, 5, 2.5):
        with fault(rf"tokens = {re.escape(repr(size))}: model lambda allows whole numbers in \[2, 4\]"):
            made.structure(tokens=size)
    with fault(r"unknown size 'layers'"):
        made.structure(layers=2)
    with fault(r"clusters = 0 is out of range; allowed are whole numbers from 1"):
        Structure(1, 1, 1, 0)


def test_decimals_of_a_model_file_become_exact():
    made = model(regulariser=Ridge(0.1))(lambda X, Y, *, slope=0.3: softplus(-0.7 * X[0, 0] * Y[0, 0]) + slope)
    at = made.at()
    assert not at.loss.has(sp.Float)
    assert at.loss.has(-sp.Rational(7, 10))
    assert at.parameters["slope"].exact_default(at.structure) == sp.Rational(3, 10)
    assert at.parameters["lambda_"].exact_default(at.structure) == (sp.Rational(1, 10),)


def test_the_digest_follows_the_physics_and_not_the_analysis():
    original = model()(ridge).at().equations_digest()
    assert model(starts={"other": Start(teacher=1)})(ridge).at().equations_digest() == original
    assert model(name="ridge")(lambda X, Y: half_square(Y[0, 0] - 2 * X[0, 0])).at().equations_digest() != original
    assert model(law=law_with(covariance=[[2]]))(ridge).at().equations_digest() != original


def test_a_default_changes_no_digest():
    """A parameter's value never regenerates a solver."""

    def make(value):
        return model(name="scaled")(lambda X, Y, *, slope=value: half_square(Y[0, 0] - slope * X[0, 0])).at()

    assert make(1).equations_digest() == make(Parameter("1/7", 0)).equations_digest()


def with_everything(
    *,
    c=2,
    default=1.0,
    low=0,
    high=3,
    doc="a scale",
    phi=1,
    noise="scale",
    start=0.6,
    name="own",
    lambda_=0.1,
    **fields,
):
    """A model of which each argument changes one thing."""
    law = law_with(covariance=[[c]])
    starts = {"semantic": Start(teacher=lambda structure: start)}

    parameter, number = Parameter(default, low, high, doc=doc), trained(phi, 1)

    def loss(X, Y, u, *, scale=parameter, b=number):
        return half_square(Y[0, 0] + u - scale * X[0, 0] - b)

    kinks = {"loss_kinks": lambda Y: Y[0]}
    made = {"law": law, "noise": {"u": GaussianNoise(noise)}, "starts": starts, "regulariser": Ridge(lambda_)}
    return model(name=name, **made, **(fields.pop("kinks", kinks)), **fields)(loss)


@pytest.mark.parametrize(
    "change",
    [
        {"c": 3},
        {"default": 2.0},
        {"low": -1},
        {"high": 4},
        {"doc": "another"},
        {"phi": 2},
        {"noise": "2"},
        {"start": 0.5},
        {"name": "other"},
        {"lambda_": 0.2},
        {"unbounded": True},
        {"summary": "words"},
        {"source": "a paper"},
        {"kinks": {"metric_kinks": lambda Y: Y[0]}},
    ],
)
def test_the_digest_of_a_model_depends_on_all_inputs_of_its_solver(change):
    """Starts, kinks and noise are functions or classes made again each time: the same physics has the same identity."""
    one, same, other = with_everything(), with_everything(), with_everything(**change)
    assert (one.physics_digest(), one.metadata_digest()) == (same.physics_digest(), same.metadata_digest())
    described = change.keys() & {"doc", "start", "summary", "source"}
    assert (one.physics_digest() == other.physics_digest()) == bool(described)
    assert (one.metadata_digest() == other.metadata_digest()) != bool(described)
    texts = [metadata_file_text(model, model.at(), "", "") for model in (one, other)]
    assert texts[0] != texts[1]


def half_a_power(w, *, strength=1):
    return strength * w[0] ** 2.5


@pytest.mark.parametrize(
    ("fields", "loss", "message"),
    [
        (
            {},
            lambda X, Y: sp.sqrt(X[0]) + Y[0] ** 2,
            r"the loss is complex \(\(.*j\) at x_0_0 = -.*, y_0_0 = .*\); it must be",
        ),
        ({}, lambda X, Y: sp.log(X[0]) ** 2, r"the loss is complex \(.* at x_0_0 = -"),
        ({}, lambda X, Y: (X[0] - Y[0]) ** 1.5, r"the loss is complex"),
        ({}, lambda X, Q: X[0] ** 2 * sp.sqrt(-Q[0][0, 0]), r"the loss is complex"),
        ({"unbounded": True}, lambda X, Y: sp.sqrt(Y[0]) * X[0], r"the loss is complex .* at x_0_0 = .*, y_0_0 = -"),
        ({"metric": lambda h: sp.sqrt(h[0])}, lambda X: X[0] ** 2, r"the metric is complex"),
        ({"regulariser": penalty(half_a_power)}, lambda X: X[0] ** 2, r"the penalty is complex \(.* at w = "),
    ],
)
def test_expressions_with_complex_values_are_refused_with_the_point(fields, loss, message):
    made = model(name="rooted", **fields)(loss)
    with fault(message):
        generate(made)


@pytest.mark.parametrize(
    ("function", "sizes", "message"),
    [
        (lambda w: sp.Piecewise((0, sp.Abs(w[0]) < 1), (sp.oo, True)), {}, r"contains infinity; write sf\.box\(w\[0\]"),
        (lambda w: 2 * box(w[0], -1, 1), {}, "use sf.box.* at most once"),
        (lambda w: box(w[0], -1, 1) + box(w[0], 0, 2), {}, "use sf.box.* at most once"),
        (lambda w: box(2 * w[0], -1, 1), {}, r"must restrict w\[0\]"),
        (lambda w: box(w[0], -1, 1), {"student": 2}, "the only column of W"),
    ],
)
def test_penalties_that_are_infinite_beyond_what_a_box_says_are_refused(function, sizes, message):
    with fault(message):
        model(name="boxed", regulariser=penalty(function), **sizes)(lambda X, Y: (X[0] - Y[0]) ** 2)


def test_the_ends_of_a_box_are_corners_and_signs_of_its_weight_are_seen():
    one = Structure(1, 1, 1, 1)
    at = penalty(lambda w, *, bound=1: box(-w[0], -2 * bound, bound) + sp.Abs(w[0])).at(one)
    (w,), bound = at.w, at.parameters["bound"].argument_symbols(one)
    assert at.bounds == (-bound, 2 * bound)
    assert set(at.kinks) == {0, -bound, 2 * bound}
    assert at.expression_where_finite == sp.Abs(w)
    even = penalty(lambda w: box(w[0], -1, 1)).at(one).expression
    assert even.subs(even.args[0], -even.args[0]) == even
