"""Every function of a generated solver says where it comes from, and what it names is there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import saddleforge.derive
import saddleforge.generated

ROOT = Path(saddleforge.generated.__path__[0])
EMIT = Path(saddleforge.derive.__path__[0]) / "emit"
SOLVERS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("*/*/*.py"))
# Equations are looked up by tests/docs, as everywhere else.
ORIGIN = re.compile(r"    # ([\w/]+\.py(?:\.jinja|:\w+)), docs/theory\.md \(\d+\.\d+\)(?:(?:, | to )\(\d+\.\d+\))*")
BUILDER = re.compile(r"\s+# (\w+/\w+\.py):(\w+)$")


@cache
def functions(file: str) -> frozenset[str]:
    """Names of the functions and methods of a file of derive/emit."""
    tree = ast.parse((EMIT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@cache
def patterns(template: str) -> list[str]:
    """What the functions of a template may be called."""
    text = (EMIT / "templates" / template).read_text(encoding="utf-8")
    return [re.sub(r"\{\{.*?\}\}", r"\\w*", name) for name in re.findall(r"^def ((?:\{\{.*?\}\}|\w)+)\(", text, re.M)]


def origins(text: str) -> list[tuple[str, str]]:
    """(function, line under its signature) of all functions."""
    lines = text.splitlines()
    tree = ast.parse(text)
    return [(node.name, lines[node.lineno]) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("path", SOLVERS)
def test_every_function_names_what_it_is_written_by_and_equations(path):
    found = origins((ROOT / path).read_text(encoding="utf-8"))
    assert found
    for name, line in found:
        origin = ORIGIN.fullmatch(line)
        assert origin, f"{name}: {line}"
        file, _, builder = origin[1].partition(":")
        if builder:
            assert builder in functions(file), name
        else:
            assert any(re.fullmatch(pattern, name) for pattern in patterns(file)), f"{name} is not in {file}"


@pytest.mark.parametrize("path", SOLVERS)
def test_every_block_of_expressions_names_the_function_that_builds_it(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    builders = [found for found in map(BUILDER.match, text.splitlines()) if found]
    assert builders or path.endswith("/model.py")
    assert {found[2] for found in builders if found[2] not in functions(found[1])} == set()


@pytest.mark.parametrize("path", SOLVERS)
def test_common_subexpressions_stand_before_what_they_build(path):
    lines = [line.strip() for line in (ROOT / path).read_text(encoding="utf-8").splitlines()]
    for n, line in enumerate(lines):
        if line.startswith("# -> "):
            name = line.removeprefix("# -> ")
            built = next(k for k in range(n + 1, len(lines)) if re.match(rf"{re.escape(name)}(, \w+)* \+?= ", lines[k]))
            assert not [one for one in lines[n + 1 : built] if one.startswith(("#", "def ", "return"))], (
                f"{path}:{n + 1}"
            )


def test_summands_of_the_averages_are_named_by_what_they_average():
    text = (ROOT / "dot_product_attention/l2_s1_t1_k1/channel.py").read_text(encoding="utf-8")
    assert "row_g_g_1_0_0 = g_1_0 * g_1_0" in text
    assert "row_g_dY_0_0_0 = dy_0_0 * g_0_0" in text
    prior = (ROOT / "dot_product_attention/l2_s1_t1_k1/prior.py").read_text(encoding="utf-8")
    assert "q_hat[n, 0, 0] = alpha * mean_g_g_0_0" in prior
