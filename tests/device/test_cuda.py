"""Generated loops on a CUDA device, without one: in CUDA's simulator, and compiled for CUDA.

The simulator runs kernels as Python, in a process of its own: Numba decides when it is imported whether it compiles.
This file is the program of that process. Loops are compiled by CUDA's own compiler where it is installed, else to LLVM.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from sympy import Max

import saddleforge as sf
from saddleforge.base.devices import DeviceOptions
from saddleforge.base.options import options_in_force
from saddleforge.channel.fields import field_law, overlaps_of_loss_fields
from saddleforge.channel.nodes import sobol_normal_points
from saddleforge.channel.points import proximal_points_at_nodes, response_jacobians_at_nodes
from saddleforge.device import loops
from saddleforge.extensions.bayes.sampling import PlantedSamplingRule
from saddleforge.integration.sampled import Sobol
from saddleforge.problems.reduced import reduce_to_fields_of_loss
from saddleforge.saddle_point.observables import _MetricIntegrand
from saddleforge.saddle_point.starts import default_start, overlaps_of_start


@sf.model(
    tokens=1,
    student=2,
    teacher=1,
    regulariser=sf.Ridge(0.05),
    metric=lambda h, Y: (Max(Y[0], 0) - Max(h[0, 0], 0) - Max(h[0, 1], 0)) ** 2,
    starts={"split": sf.Start(teacher=((0.6,), (-0.3,)))},
)
def relus(X, Y):
    """Two ReLU units learn one: the minimum of the Moreau objective may lie on kinks."""
    return sf.half_square(Max(Y[0], 0) - Max(X[0, 0], 0) - Max(X[0, 1], 0))


# Models whose loss has several fields, smooth or with kinks, and their sizes; others are averaged on the CPU.
MODELS = (
    ("hard_attention", {}),
    ("relus", {}),
    ("dot_product_attention", {}),
    ("dot_product_attention", {"student_rank": 2}),
    ("dot_product_attention", {"tokens": 3}),
    ("attention_on_mixture", {}),
    ("causal_attention", {}),
    ("committee_machine", {}),
    ("linear_attention", {}),
    ("mixture_classification", {"clusters": 3, "student_rank": 2}),
    ("tempered_attention", {}),
    ("untied_attention", {}),
    ("value_attention", {}),
)


def problem_of(model: str, sizes: dict[str, int]) -> sf.Problem:
    """Return the problem of one of the models at alpha = 2."""
    return sf.problem(relus if model == "relus" else model, alpha=2.0, **sizes)


def averages_of_problem(problem: sf.Problem, log2: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and values of all averages over 2^log2 nodes that can run on a device."""
    overlaps = overlaps_of_start(problem, default_start(problem))
    part = reduce_to_fields_of_loss(problem)
    there = overlaps_of_loss_fields(part, overlaps)
    yield "averages", Sobol(log2, scramblings=1).averages(problem, overlaps).means
    fields = field_law(part, there, part.label_probabilities[0][0])
    nodes = sobol_normal_points(part.dimension, log2, 0, ())
    yield from proximal_points_at_nodes(part, fields, nodes)._asdict().items()
    names = ("determinant", "share", "response")
    yield from zip(names, response_jacobians_at_nodes(part, fields, nodes, np.ones(len(nodes))), strict=True)
    integrand = _MetricIntegrand.metric_integrand_of_reduced_fields(problem, overlaps)
    yield "test error", integrand.metric_average_by_sobol_sets(log2)


def posterior_of_problem(problem: sf.Problem, log2: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield log evidence and its derivatives at 2^log2 samples of a model whose output is declared."""
    rule, labels = PlantedSamplingRule(problem), problem.label_probabilities[0][0]
    omega = sobol_normal_points(problem.tokens * problem.teacher_rank, log2, 1, ())
    observed = rule.outputs_of_fields(omega, labels)
    q = 0.5 * problem.law.rho_star
    names = ("log evidence", "slopes", "curvatures")
    yield from zip(names, rule.log_evidence_and_derivatives(observed, omega, q, labels, True), strict=True)


def averages_of_models(models: list, log2: int) -> dict[str, np.ndarray]:
    """Return all averages of the models, by model and name."""
    found = {}
    for model, sizes in models:
        problem = problem_of(model, sizes)
        found |= {f"{model} {sizes} {name}": values for name, values in averages_of_problem(problem, log2)}
    problem = sf.problem("dot_product_attention", alpha=2.0)
    return found | {f"posterior {name}": values for name, values in posterior_of_problem(problem, log2)}


def _averages_in_python(device, models, folder):
    to = folder / f"{device}.npz"
    simulated = {"NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, __file__, device, repr(list(models)), to]
    subprocess.run(command, env=os.environ | simulated, check=True, timeout=600)
    return np.load(to)


OTHERS = pytest.param(MODELS[1:], marks=pytest.mark.slow)


@pytest.mark.parametrize("models", [MODELS[:1], OTHERS], ids=["one", "others"])
def test_a_device_computes_what_the_cpu_computes(models, tmp_path):
    simulated, python = (_averages_in_python(device, models, tmp_path) for device in ("cuda", "cpu"))
    compiled = averages_of_models(list(models), 3)
    assert set(simulated) == set(python) == set(compiled)
    for name, values in simulated.items():
        np.testing.assert_array_equal(values, python[name], err_msg=name)
        np.testing.assert_allclose(values, compiled[name], rtol=1e-12, atol=1e-13, err_msg=name)


POINTER_WIDTHS = "e-i64:64-i128:128-v16:16-v32:32-n16:32:64"  # of 64-bit devices


@pytest.fixture
def compile_for_cuda(monkeypatch):
    """compile_for_cuda(kernel, types) of arguments for compute capability 9.0; raises if something is not in CUDA."""
    pytest.importorskip("numba_cuda")
    from numba import cuda, types
    from numba.cuda import dispatcher
    from numba.cuda.compiler import compile_cuda
    from numba.cuda.cudadrv import nvvm

    monkeypatch.setattr(dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=(9, 0)))
    try:
        cuda.compile_ptx(lambda: None, (), cc=(9, 0))
        has_compiler = True
    except Exception:  # of the package that looks for it
        has_compiler = False
        known = SimpleNamespace(data_layout=POINTER_WIDTHS, get_ir_version=lambda: (2, 0, 3, 1))
        monkeypatch.setattr(nvvm, "NVVM", lambda: known)

    def compile_kernel(kernel, arguments):
        if has_compiler:
            return cuda.compile_ptx(kernel.py_func, arguments, cc=(9, 0))[0]
        found = compile_cuda(kernel.py_func, types.void, arguments, cc=(9, 0))
        return found.library.get_llvm_str()

    return compile_kernel


def _loops_of(averages, monkeypatch):
    """Return every compiled loop that averages call, with the Numba types of its arguments, by name."""
    from numba import typeof

    found, run = {}, loops.run_loop_in_threads

    def run_and_record(loop, parts, *arguments):
        found[loop.__name__] = loop, tuple(typeof(each) for each in arguments)
        run(loop, parts, *arguments)

    monkeypatch.setattr(loops, "run_loop_in_threads", run_and_record)
    list(averages)
    return found


@pytest.mark.parametrize(
    ("model", "sizes"),
    [each if n == 0 else pytest.param(*each, marks=pytest.mark.slow) for n, each in enumerate(MODELS)],
    ids=[" ".join([model, *map(str, sizes.values())]) for model, sizes in MODELS],
)
def test_all_loops_of_a_model_compile_for_cuda(model, sizes, compile_for_cuda, monkeypatch):
    from numba import types

    from saddleforge.device.cuda import _kernel_of_loop

    problem = problem_of(model, sizes)
    found = _loops_of(averages_of_problem(problem, 2), monkeypatch)
    if model == "dot_product_attention" and not sizes:
        found |= _loops_of(posterior_of_problem(problem, 2), monkeypatch)
    assert {"sample", "proximal_points", "field_slopes", "test_error"} <= set(found)
    for loop, arguments in found.values():
        text = compile_for_cuda(_kernel_of_loop(loop), (types.int64, types.Tuple(arguments)))
        assert "call_loop_for_index" in text


if __name__ == "__main__":
    _, device, models, to = sys.argv
    with options_in_force(DeviceOptions(device, min_nodes=1)):
        np.savez(to, **averages_of_models(ast.literal_eval(models), 3))
