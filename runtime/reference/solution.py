"""A solution to any accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from mpmath import mp

from ..contract import parameters_json
from ..errors import InputError, NotConvergedError, NotProvedError, TimeLimitError
from ..fixed_point import Status
from ..naming import symbols_of
from ..overlaps import Overlaps
from ..problem import Problem
from ..solution import Solution, solve
from ..text import not_in_the_limit
from .channel import check_supported
from .improve import check_accuracy, decimals, improve
from .system import System

ROUGH = 1e-4  # accuracy of the solution in double precision to start from


def check_available() -> None:
    """Raise InputError where there is no ball arithmetic."""
    if find_spec("flint") is None:
        raise InputError("a proof needs ball arithmetic: pip install 'saddleforge[proof]' (python-flint)")


def told(evidence: dict[str, Any]) -> str:
    """How half widths were obtained, in words, and what they do not hold."""
    limit = not_in_the_limit(evidence)
    proof = evidence.get("proof")
    if proof is None:
        return f"{' and '.join(rule['rule'] for rule in evidence['rules'])} agree{limit}"
    return (
        f"the printed equations have exactly one solution within {proof['box']:.0e} of the blocks, and it lies within "
        f"these half widths ({proof['method']}, {proof['bits']} bits){limit}"
    )


@dataclass(frozen=True, repr=False)
class PreciseSolution:
    """Overlaps as arrays of mpf, with half widths that two rules agree within, or that are proved.

    Attributes:
        overlaps, errors: q, V (C, 1, 1), m (C, 1), theta (C, 1, 1), and their half widths.
        observables: training_loss, free_entropy, replicon and, where there is one, test_error -> (value, half width).
        near: the solution in double precision that it was found from.
        evidence: digits carried, rules, residual.
    """

    problem: Problem
    overlaps: Overlaps
    errors: Overlaps
    observables: dict[str, tuple[Any, Any]]
    status: Status
    near: Solution
    evidence: dict[str, Any]
    error_kind: str = "verified"

    @property
    def success(self) -> bool:
        return self.status.success

    @property
    def start(self) -> str:
        return self.near.start

    def _blocks(self) -> dict[str, list[tuple[str, str]]]:
        with mp.workdps(self.evidence["digits"]):
            return {
                name: [
                    decimals(value, error)
                    for value, error in zip(
                        getattr(self.overlaps, name).flat, getattr(self.errors, name).flat, strict=True
                    )
                ]
                for name in ("q", "V", "m", "theta")
            }

    def __repr__(self) -> str:
        return self.table()

    def table(self, names: Mapping[str, str] | None = None) -> str:
        """For a terminal; `names` are symbols of the reader's own."""
        evidence, shown = self.evidence, symbols_of(self.problem, names)
        lines = [
            f"{self.problem.solver.name}  {shown['alpha'][0]} = {self.problem.alpha:g}",
            f"start {self.start}, reached {self.near.branch}; {self.status.words}, "
            f"residual {evidence['residuals'][0]:.2g}, {evidence['digits']} digits carried",
        ]
        for name, entries in self._blocks().items():
            lines += [f"  {shown[name][0]:<14}{value} +- {error}" for value, error in entries]
        for name, (value, error) in self.observables.items():
            with mp.workdps(evidence["digits"]):
                lines.append("  {:<14}{} +- {}".format(name.replace("_", " "), *decimals(value, error)))
        for name, reason in evidence.get("observables_not_proved", {}).items():
            lines.append(f"  {name.replace('_', ' ')} is not proved: {reason}")
        lines.append(f"errors are {self.error_kind}: {told(evidence)}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """As `solve`, with decimal strings for numbers, of what there is at this precision."""
        shape = self.problem.clusters
        blocks = self._blocks()

        def nested(part: int) -> dict[str, Any]:
            wrap = {"q": 2, "V": 2, "m": 1, "theta": 2}
            out = {}
            for name, entries in blocks.items():
                column: list[Any] = [entry[part] for entry in entries]
                for _ in range(wrap[name]):
                    column = [[entry] for entry in column]
                out[name] = [column[:shape]]
            return out

        with mp.workdps(self.evidence["digits"]):
            shown = {name: decimals(*pair) for name, pair in self.observables.items()}
        return {
            "model": self.problem.solver.name,
            "digest": self.problem.solver.digest,
            "parameters": parameters_json(self.problem),
            "start": self.start,
            "branch": self.near.branch,
            "status": self.status.value,
            "residual": self.evidence["residuals"][0],
            "overlaps": nested(0),
            **{name: value for name, (value, _) in shown.items()},
            "errors": {"overlaps": nested(1), **{name: error for name, (_, error) in shown.items()}},
            "error_kind": self.error_kind,
            "evidence": self.evidence,
        }


def solve_precisely(
    problem: Problem,
    start: str | Overlaps | Solution = "semantic",
    *,
    accuracy: float = 1e-30,
    proof: bool = False,
) -> PreciseSolution:
    """Solve the saddle point of a model of one token, s = t = 1, with a ridge, to any accuracy.

    Decimals of parameters are taken as the numbers they print as.

    Args:
        start: as for `saddleforge.solve`; a solution may be of a problem nearby, as of a hinge less sharply rounded.
        accuracy: half width asked of every overlap, relative to the size of its block; no less than 1e-200.
        proof: prove it in ball arithmetic (needs python-flint). Where that fails the status is `not_proved`, what is
            returned is verified by two rules, and the evidence holds the reason.

    Raises:
        InputError: the model is out of reach (the sentence says why), or minima of the Moreau objective compete.
        NotConvergedError: no solution was found in double precision, or the iteration left it.
        TimeLimitError: a time limit came first; `point` is the solution in double precision.
        NotProvedError: neither a proof nor two rules could confirm it; `estimate` is the one in double precision.
    """
    check_accuracy(accuracy)
    check_supported(problem)
    problem.only_at_zero_temperature("accuracies beyond double precision and proofs are")
    if proof:
        check_available()
    near = start if isinstance(start, Solution) else solve(problem, start, accuracy=ROUGH)
    if near.losses is None and near.status is not Status.TIME_LIMIT:
        raise NotConvergedError(
            f"no solution in double precision to start from: {near.status.words}; {near.status.advice}"
        )
    try:
        if near.status is Status.TIME_LIMIT:
            raise TimeLimitError("the time limit ended the search for a solution in double precision")
        found = _proved_or_verified(problem, near, accuracy) if proof else _verified(problem, near, accuracy)
    except TimeLimitError as error:
        error.point = near
        raise
    if found.success and near.status is Status.ENDED_ELSEWHERE:
        return replace(found, status=near.status)
    return found


def _proved_or_verified(problem: Problem, near: Solution, accuracy: float) -> PreciseSolution:
    from ..proof.results import proved_solution

    try:
        return proved_solution(problem, near, accuracy)
    except NotProvedError as error:
        return _unproved(problem, near, accuracy, error)


def _unproved(problem: Problem, near: Solution, accuracy: float, error: NotProvedError) -> PreciseSolution:
    """What two rules say where balls failed; the error with its estimate in doubles where these fail too."""
    try:
        found = _verified(problem, near, accuracy)
    except (InputError, NotConvergedError) as reason:
        error.estimate = near
        raise error from reason
    return replace(found, status=Status.NOT_PROVED, evidence={**found.evidence, "not_proved": str(error)})


def _verified(problem: Problem, near: Solution, accuracy: float) -> PreciseSolution:
    """By two rules at rising precision."""
    scales = near.overlaps.block_scales
    system = System(problem, scales)
    found = improve(
        system, near.overlaps.pack(), accuracy, lambda errors: max(errors / scales), f"{accuracy:g}: solving"
    )
    observables = {
        name: found.half_width(lambda state, name=name: state.observable(name), stationary=True)  # type: ignore[misc]
        for name in ("training_loss", "free_entropy")
    }
    observables["replicon"] = found.half_width(lambda state: state.replicon)
    if "metric" in problem.solver.reference.DRIVES:
        observables["test_error"] = found.half_width(lambda state: state.observable("test_error"))
    return PreciseSolution(
        problem=problem,
        overlaps=Overlaps.unpack(found.root.z, problem.sizes),
        errors=Overlaps.unpack(np.array(found.errors, object), problem.sizes),
        observables=observables,
        status=found.status,
        near=near,
        evidence=found.evidence | problem.held_at,
    )
