"""The table of docs/gpu.md: proximal points a second and times of solutions, on the CPU and on a CUDA device.

    python tests/benchmarks/device.py [--seconds 300]

It prints Markdown. Both columns are of this machine and one run; without a device the second is empty.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import saddleforge as sf
from saddleforge.base.devices import DeviceOptions
from saddleforge.base.numbers import format_value_with_error
from saddleforge.base.options import options_in_force
from saddleforge.base.threads import available_thread_count
from saddleforge.channel.fields import field_law
from saddleforge.channel.nodes import equal_weights, sobol_normal_points
from saddleforge.channel.shared import channel_moment_sums
from saddleforge.saddle_point.starts import default_start, overlaps_of_start

CHANNELS = (
    ("attention", "dot_product_attention", {}),
    ("attention, rank 2", "dot_product_attention", {"student_rank": 2}),
    ("attention, three tokens", "dot_product_attention", {"tokens": 3}),
    ("hard attention", "hard_attention", {}),
    ("value attention", "value_attention", {}),
)
RELUS = """
import saddleforge as sf
from sympy import Max


@sf.model(
    tokens=1,
    student=2,
    teacher=1,
    regulariser=sf.Ridge(0.05),
    metric=lambda h, Y: (Max(Y[0], 0) - Max(h[0, 0], 0) - Max(h[0, 1], 0)) ** 2,
    starts={"split": sf.Start(teacher=((0.6,), (-0.3,)))},
)
def relus(X, Y):
    return sf.half_square(Max(Y[0], 0) - Max(X[0, 0], 0) - Max(X[0, 1], 0))
"""
SOLUTIONS = (
    ("value attention, alpha = 4, 1e-3", "value_attention", {"alpha": 4.0}, "semantic", 1e-3),
    ("value attention, alpha = 2, 1e-4", "value_attention", {"alpha": 2.0}, "semantic", 1e-4),
    ("two ReLU units learn one, alpha = 4, 3e-3", "relus", {"alpha": 4.0}, "split", 3e-3),
    ("three tokens, alpha = 2, 1e-4", "dot_product_attention", {"alpha": 2.0, "tokens": 3}, "semantic", 1e-4),
)


def devices() -> list[str]:
    """Return the devices that can be used here, "cpu" first."""
    try:
        DeviceOptions("cuda")
    except sf.InputError as error:
        print(error, file=sys.stderr)
        return ["cpu"]
    return ["cpu", "cuda"]


def points_per_second(model: str, sizes: dict[str, int], device: str) -> tuple[float, np.ndarray]:
    """Return proximal points a second, the best of three averages over a Sobol set of normal fields, and its sums."""
    problem = sf.problem(model, alpha=2.0, **sizes)
    fields = field_law(problem, overlaps_of_start(problem, default_start(problem)), (0,) * problem.tokens)
    channel, log2 = problem.solver.proximal, 22 if device == "cuda" else 16
    nodes = sobol_normal_points(problem.dimension, log2, 0, ())
    law = *fields.sampling_loop_arguments, fields.precision, problem.noise_scale, fields.constants, 1
    took = np.inf
    with options_in_force(DeviceOptions(device)):
        for _ in range(4):  # the first compiles
            start = time.perf_counter()
            sums = channel_moment_sums(channel, channel.sample, nodes, equal_weights(len(nodes)), *law)
            took = min(took, time.perf_counter() - start)
    return len(nodes) / took, sums.sum(axis=0)


def seconds_to_solve(model: str, parameters: dict, start: str, accuracy: float, device: str, limit: float) -> str:
    """Return in words how long a solution takes once compiled, with its test error."""
    problem = sf.problem(model, **parameters)
    with options_in_force(DeviceOptions(device)):
        sf.solve(problem, start, accuracy=0.1, integrator="sobol", points=10)
        began = time.perf_counter()
        try:
            with sf.time_limit(limit):
                solution = sf.solve(problem, start, accuracy=accuracy)
                error = format_value_with_error(solution.test_error, solution.test_error_error)
        except sf.TimeLimitError:
            return f"none in {limit:.0f} s"
        return f"{time.perf_counter() - began:.3g} s, {solution.status.value}, test error {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=300.0, help="about how long it may take")
    limit = parser.parse_args().seconds / (len(SOLUTIONS) * 3)
    here = devices()
    print(f"| average over nodes | {' | '.join(here)} | ratio | difference of sums |")
    print(f"|---|{'---|' * len(here)}---|---|")
    for name, model, sizes in CHANNELS:
        found = [points_per_second(model, sizes, device) for device in here]
        ratio = f"{found[-1][0] / found[0][0]:.0f}" if len(found) > 1 else ""
        apart = f"{np.max(np.abs(found[-1][1] - found[0][1])):.0e}" if len(found) > 1 else ""
        print(f"| {name} | {' | '.join(f'{rate:.2g}' for rate, _ in found)} | {ratio} | {apart} |", flush=True)
    print(f"\n| solution ({available_thread_count()} threads) | {' | '.join(here)} |\n|---|{'---|' * len(here)}")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "relus.py").write_text(RELUS)
        for name, model, *asked in SOLUTIONS:
            model = f"{folder}/relus.py" if model == "relus" else model
            took = [seconds_to_solve(model, *asked, device, limit) for device in here]
            print(f"| {name} | {' | '.join(took)} |", flush=True)


if __name__ == "__main__":
    main()
