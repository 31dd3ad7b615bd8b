"""Whatever stands on a command line: a result, or a sentence that says why there is none; no traceback and no bug."""

import json
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import saddleforge as sf
from saddleforge.base import threads
from saddleforge.base.progress import set_quiet_mode
from saddleforge.cli import main

NOT_SHRUNK = (Phase.explicit, Phase.generate)  # an example takes seconds
STATUSES = (0, 2, 3)
MODELS = [
    "ridge_regression",
    "hinge",
    "dot_product_attention",
    "mixture_classification",
    "perceptron",
    "lasso_regression",
]
KNOWN = [
    *("alpha", "lambda", "Delta", "sigma", "omega", "spectrum", "tokens", "student_rank", "teacher_rank", "clusters"),
    *("encodings", "A", "kappa", "inverse_temperature", "lambda_", "l1_ratio", "means", "weights", "rho"),
]
HOSTILE = [
    *("", " ", "=", "==", ",", ":", "::", "1:", ":1", "1:2:", "1:2:3:4", "nan", "inf", "-inf", "-0", "1e400", "-1e400"),
    *(
        "1e308",
        "5e-324",
        "0x10",
        "1_0",
        "1j",
        "True",
        "None",
        "'1'",
        "()",
        "{}",
        "[]",
        "[[]]",
        "[1,[2]]",
        "[[1,2],[3]]",
    ),
    *("[1,nan]", "[NaN]", "[[Infinity]]", "1+1", "2**9**9", "9" * 5000, "[" * 3000, "\N{MINUS SIGN}1", "١", "½", "α"),
    *("__import__('os').system('touch executed')", "lambda: 0", "exec('1')", "a.b", "\\", "%s%n", "${HOME}", "`id`"),
    *("\u202e", "\ufeff1", "\U0001f600", "\ud800", "--", "-1", "@", "~", "/", ".", "..", "/dev/null", "/dev/full"),
]


def numbers():
    return st.one_of(
        st.sampled_from(["0", "1", "0.5", "2", "-1", "1e-3", "1e-12", "1e12", "3", "10"]),
        st.floats(width=32).map(repr),
        st.integers(-(10**20), 10**20).map(str),
    )


def values():
    arrays = st.recursive(numbers(), lambda inner: st.lists(inner, max_size=3).map(lambda x: f"[{','.join(x)}]"))
    return st.one_of(numbers(), arrays, st.sampled_from(HOSTILE), st.text(max_size=12))


def names():
    return st.one_of(st.sampled_from(KNOWN), st.sampled_from(HOSTILE), st.text(max_size=8))


def spans():
    few = st.sampled_from(["1", "2", "3", "0", "-1", "1.5", "99999999999"])
    return st.one_of(
        st.tuples(numbers(), numbers(), few).map(":".join),
        st.tuples(numbers(), numbers()).map(":".join),
        st.sampled_from(["1:2:2", "2:1", "0.5:2", "1:1:1", "1,2", "2,nan", "1,,2"]),
        values(),
    )


def assigned(value):
    return st.one_of(st.tuples(names(), value).map("=".join), values())


def starts():
    return st.one_of(
        st.sampled_from(["semantic", "positional", "random", "theta=0.5", "semantic,positional"]), values()
    )


WORDS = [
    "test_error",
    "q",
    "V",
    "m",
    "theta",
    "+",
    "-",
    "*",
    "/",
    "**",
    "(",
    ")",
    "[",
    "]",
    "0",
    "1",
    "9",
    "=",
    ".",
    ",",
]
WORDS += ["<", "__class__", "sqrt", "lambda", "x", "'", "is", "not", "if", "for", "training_loss"]
CONDITIONS = st.one_of(
    st.sampled_from(["test_error = 0.15", "q = 1", "theta - m = 0", "q[0] = 1", "V=1=2", "test_error = 1/0"]),
    st.lists(
        st.sampled_from(WORDS),
        max_size=9,
    ).map(" ".join),
    values(),
)  # fmt: skip
OPTIONS = {
    "--set": assigned(values()),
    "--start": starts(),
    "--accuracy": values(),
    "--integrator": st.one_of(
        st.sampled_from(["auto", "sobol", "pieces", "lines", "lattice", "gauss-hermite"]), values()
    ),
    "--points": values(),
    "--seed": values(),
    "--rsb": st.sampled_from(["0", "1", "2", "3", "-1", "x"]),
    "--inverse-temperature": values(),
    "--rename": assigned(values()),
    "--sensitivities": values(),
    "--over": assigned(spans()),
    "--along": assigned(spans()),
    "--where": CONDITIONS,
    "--kind": st.one_of(st.sampled_from(["crossing", "where", "at", "spinodal", "instability"]), values()),
    "--on": starts(),
    "--between": starts(),
    "--minimise": st.one_of(st.sampled_from(["test_error", "training_loss"]), values()),
    "--from": values(),
    "--event-accuracy": values(),
    "--time": spans(),
    "--rate": values(),
    "--d": st.sampled_from(["1", "2", "20", "0", "-1", "x", "1e3", ""]),
    "--seeds": st.sampled_from(["1", "2", "0", "-1", "x"]),
    "--method": st.one_of(st.sampled_from(["auto", "lbfgs", "gd", "adam", "newton", "gamp", "sgd", "fista"]), values()),
    "--ask": st.one_of(st.sampled_from(["solve", "stability", "simulate"]), values()),
    "--figure": values(),
    "--format": values(),
    "--parisi": values(),
    "--deflate": values(),
    "--threads": st.sampled_from(["1", "0", "-1", "99", "x"]),
    "--verify": None,
    "--proof": None,
    "--all-branches": None,
    "--steps": None,
    "--json": None,
    "--nonsense": None,
}
FITTING = {  # command -> what it cannot do without, more often than not, and options of its own
    "solve": (
        ["--set alpha=2"],
        "--set --start --accuracy --integrator --points --rsb --rename --sensitivities --inverse-temperature --from "
        "--verify --parisi --deflate --all-branches",
    ),
    "stability": (["--set alpha=2"], "--set --start --accuracy --rsb --from"),
    "curve": (["--over alpha=1:2:2"], "--set --over --start --accuracy --rename --inverse-temperature"),
    "follow": (["--over alpha=2:1.9"], "--set --over --start --event-accuracy"),
    "sweep": (["--over alpha=1,2"], "--set --over --start --ask --accuracy"),
    "threshold": (
        ["--kind where --where test_error=0.5 --over alpha=1:4"],
        "--kind --where --over --along --on --between --accuracy --set --rsb",
    ),
    "tune": (["--over lambda=0.1:1 --set alpha=2"], "--over --along --minimise --on --set --accuracy"),
    "bayes": (["--set alpha=2"], "--set --accuracy"),
    "dynamics": (["--rate 1 --time 0:1"], "--rate --time --set --start --d"),
    "simulate": (["--set alpha=2 --d 20 --seeds 1 --threads 1"], "--set --start --d --seeds --method --rate"),
    "derive": ([""], "--set --format --rename --rsb"),
    "reproduce": (["--out out"], "--figure"),
}
LIMITED = set(FITTING)


@st.composite
def command_lines(draw):
    command = draw(st.sampled_from(list(FITTING)))
    fitting, own = FITTING[command]
    arguments = [command]
    if command != "reproduce":
        arguments.append(draw(st.one_of(st.sampled_from(MODELS[:1] * 6 + MODELS), values())))
    if draw(st.integers(0, 3)):
        arguments += draw(st.sampled_from(fitting)).split()
    chosen = st.one_of(st.sampled_from([*own.split(), "--json"]), st.sampled_from(list(OPTIONS)))
    for option in draw(st.lists(chosen, max_size=3)):
        value = OPTIONS[option]
        arguments += [option] if value is None else [option, draw(value)]
    if command in LIMITED:
        arguments += ["--time-limit", "0.5"]
    return arguments


def check(capsys, arguments):
    capsys.readouterr()
    arguments = [argument.replace("\0", "") for argument in arguments]  # which no shell can pass
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(SystemExit) as left:
        main(arguments)
    printed = capsys.readouterr()
    assert left.value.code in STATUSES, printed.err
    assert "Traceback" not in printed.err
    if left.value.code:
        assert printed.err.strip().splitlines()[-1].startswith("saddleforge: ")
    if "--json" in arguments and "-h" not in arguments:
        assert isinstance(json.loads(printed.out), dict)
    assert not os.path.exists("executed")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    threads.set_thread_limit(1)
    yield
    set_quiet_mode(False)
    threads.set_thread_limit(threads.available_thread_count())


ANY = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    "database": None,
}


@settings(max_examples=15, derandomize=True, **ANY)
@given(arguments=command_lines())
def test_any_command_line_ends_with_a_result_or_a_sentence(here, capsys, arguments):
    check(capsys, arguments)


@pytest.mark.slow
@settings(max_examples=int(os.environ.get("SADDLEFORGE_FUZZ", 1000)), **ANY)
@given(arguments=command_lines())
def test_many_command_lines_end_with_a_result_or_a_sentence(here, capsys, arguments):
    check(capsys, arguments)


# Model files

TERMS = [
    "X[0]",
    "Y[0]",
    "u",
    "X[0] * Y[0]",
    "Y[0] - X[0]",
    "Y[0] + u - X[0]",
    "1 - sp.sign(Y[0]) * X[0]",
    "X[-1] - Y[0]",
]
SHAPES = [
    *(
        "sf.half_square({})",
        "sp.Abs({})",
        "sp.Max(0, {})",
        "sf.softplus({})",
        "sp.sqrt(1 + ({})**2)",
        "sp.Max(0, {})**2",
    ),
    *(
        "sp.log(1 + ({})**2)",
        "1 - sp.exp(-({})**2)",
        "sp.Max({0}, -2 * ({0}))",
        "sf.rounded_hinge({}, 1)",
        "({})**4 / 4",
    ),
    *(
        "sp.Piecewise((({0})**2 / 2, sp.Abs({0}) < 1), (sp.Abs({0}) - sp.Rational(1, 2), True))",
        "sp.cos({})",
        "-({})**2",
    ),
    *(
        "({})**3",
        "1 / ({})",
        "sp.log({})",
        "sp.Heaviside({})",
        "sp.sign({})",
        "sp.exp({})",
        "sp.floor({})",
        "sp.oo * ({})",
    ),
    *("sp.gamma({})", "sp.Symbol('w') * ({})", "0 * ({})", "sp.I * ({})", "{}", "c * ({})**2"),
]
NOISES = [
    "",
    'noise={"u": sf.GaussianNoise(variance="c")}',
    'noise={"u": sf.GaussianNoise(variance=-1)}',
    'noise={"u": sf.DiscreteNoise((1, -1), (0.75, 0.25))}',
    'noise={"u": sf.DiscreteNoise((1, -1), lambda Y, c: (c, 1 - c))}',
    'noise={"u": sf.DiscreteNoise((0, 0), (2, 3))}',
]
PENALTIES = [
    *(
        "",
        "regulariser=sf.Ridge(0.1)",
        "regulariser=sf.Ridge(0)",
        "regulariser=sf.Ridge(-1)",
        "regulariser=sf.Sphere()",
    ),
    *("regulariser=sf.penalty(lambda w: sp.Abs(w[0]))", "regulariser=sf.penalty(lambda w: w[0]**4 + w[0]**2)"),
    *(
        "regulariser=sf.penalty(lambda w: -w[0]**2)",
        "regulariser=sf.penalty(lambda w: sp.Max(0, w[0] - 1))",
        "regulariser=3",
    ),
]
LAWS = [
    "",
    "tokens=2",
    "tokens=2, student=2",
    "student=2",
    "teacher=2",
    "clusters=2",
    "law=sf.sparse_teacher",
    "tokens=0",
]
LAWS += [
    "law=sf.binary_teacher",
    "tokens=2, law=sf.clustered_tokens, clusters=2",
    "law=sf.unstructured_tokens",
    "law=1",
]
METRICS = ["", "metric=lambda h, Y: (Y[0] - h[0]) ** 2", "metric=lambda h, Y: sp.Heaviside(-h[0] * Y[0])", "metric=0"]
METRICS += ["metric=lambda h, Y: 1 / h[0]", "metric=lambda: 1"]
STARTS = ['starts={"semantic": sf.Start(teacher=0.6)}', "", 'starts={"semantic": sf.Start(teacher=7)}', "starts={}"]
FILE = """import sympy as sp

import saddleforge as sf


@sf.model({fields})
def drawn(X, Y{noise}, *, c=sf.Parameter(0.5, 0)):
    return {loss}
"""


@st.composite
def model_files(draw):
    """Losses of one shape or two, well posed or not, with a law, noise, penalty and metric that may fit."""
    shape = st.tuples(st.sampled_from(SHAPES), st.sampled_from(TERMS)).map(lambda pair: pair[0].format(pair[1]))
    loss = " + ".join(draw(st.lists(shape, min_size=1, max_size=2)))
    noise = draw(st.sampled_from(NOISES[1:] if "u" in loss.replace("sqrt", "") else NOISES))
    usual = st.sampled_from  # the first of a list is what a model does without
    fields = [draw(usual(choices)) for choices in (LAWS, PENALTIES, METRICS, STARTS)]
    return FILE.format(fields=", ".join(filter(None, [*fields, noise])), noise=", u" * bool(noise), loss=loss)


@pytest.mark.slow
@settings(max_examples=int(os.environ.get("SADDLEFORGE_FUZZ", 60)), phases=NOT_SHRUNK, **ANY)
@given(text=model_files())
def test_a_drawn_model_is_derived_and_solved_or_refused(here, capsys, text):
    Path("drawn.py").write_text(text)
    for arguments in (
        ["derive", "drawn.py"],
        ["solve", "drawn.py", "--set", "alpha=2", "--json", "--time-limit", "20"],
    ):
        try:
            check(capsys, arguments)
        except BaseException:
            print(text)
            raise


def test_a_function_without_a_derivative_is_printed_and_not_solved(here, call):
    """Found by drawing: floor was a KeyError where equations are printed."""
    Path("drawn.py").write_text(FILE.format(fields="", noise="", loss="sp.floor(X[0])"))
    assert "floor" in call("derive", "drawn.py").stdout
    done = call("solve", "drawn.py", "--set", "alpha=2")
    assert done.status == 2 and "no code can be generated for the function floor" in done.sentence


def test_infinity_in_a_loss_is_refused_in_a_sentence(here, call):
    """Found by drawing: a TypeError of mpmath."""
    Path("drawn.py").write_text(FILE.format(fields="", noise="", loss="sp.oo * X[0]"))
    done = call("derive", "drawn.py")
    assert done.status == 2 and "model drawn cannot be derived: " in done.sentence


@pytest.mark.parametrize("value", ["[2]", "[-100000001,10]", "1" * 400])
@pytest.mark.parametrize("name", ["clusters", "student_rank", "alpha", "Delta"])
def test_a_size_or_number_that_is_none_is_refused(here, call, name, value):
    """Found by drawing: lists were a TypeError, whole numbers beyond floating point an OverflowError."""
    done = call("solve", "ridge_regression", "--set", f"{name}={value}")
    assert done.status == 2 and name in done.sentence
    done = call("dynamics", "ridge_regression", "--rate", "1", "--set", f"{name}={value}")
    assert done.status == 2 and name in done.sentence


@pytest.mark.parametrize("text", ["a\rb", "a\x0bb", "a\nb", "a\x85b", "a\x1b[2Jb", "a\u202eb", "a\u2028b"])
def test_control_characters_in_arguments_are_escaped_in_messages(here, call, text):
    """Found by drawing: a sentence that repeats it had several lines, and could clear the screen."""
    done = call("curve", "ridge_regression", "--over", text)
    assert done.status == 2 and done.sentence.startswith("saddleforge: ") and text not in done.stderr
    assert text.encode("unicode_escape").decode() in done.stderr


@pytest.mark.parametrize("count", ["0", "-1", "1000000"])
def test_threads_that_there_are_not_are_refused(here, call, count):
    done = call("solve", "ridge_regression", "--set", "alpha=2", "--threads", count)
    assert done.status == 2 and f"--threads {count} is out of range; allowed are whole numbers from" in done.stderr


def test_big_sizes_of_the_python_interface_are_refused():
    for value in (10**400, [2], "two"):
        with pytest.raises(sf.InputError, match="a number is expected"):
            sf.problem("ridge_regression", clusters=value)


def test_a_model_without_named_starts_raises_an_error_that_says_so(here, call):
    """Found by drawing: an IndexError where the first of them was asked for."""
    Path("drawn.py").write_text(FILE.format(fields="starts={}", noise="", loss="sf.half_square(X[0] - Y[0])"))
    done = call("solve", "drawn.py", "--set", "alpha=2")
    assert done.status == 2 and "drawn has no named starts" in done.sentence
    done = call("sweep", "drawn.py", "--over", "alpha=1,2")
    assert done.status == 2 and "drawn has no named starts" in done.sentence
