"""Why a solution was integrated by the rule that it has: what its averages are like, and what was tried."""

from __future__ import annotations

from collections.abc import Iterable

from ..integration import Averages
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.reduced import integrated


def explanation(problem: Problem, overlaps: Overlaps, averages: Averages | None, tried: Iterable[str]) -> list[str]:
    """Sentences about dimension, kinks and jumps of the averages, then what was tried, in its order."""
    return [*_dimensions(problem), *_kinks(problem, overlaps), *_jumps(problem, averages), *tried]


def _dimensions(problem: Problem) -> list[str]:
    part = integrated(problem)
    fields, teachers = problem.tokens * problem.student_rank, problem.tokens * problem.teacher_rank
    noise = len(problem.noise_scale)
    counted = (fields, "the student"), (teachers, "the teacher"), (noise, "noise")
    known = ", ".join(f"{count} of {what}" for count, what in counted if count)
    words = [f"fields: {known}, {problem.dimension} dimensions in all{_of_labels(problem)}"]
    if part is not problem:
        cases, plural = _of_labels(part).replace("choices of labels", "cases"), "s" * (part.dimension > 1)
        words.append(
            f"the loss depends on fewer combinations of them: {part.solver.channel.FIELDS} of the student, "
            f"{part.dimension} dimension{plural} in all{cases} (`saddleforge derive` names them)"
        )
    if problem.inverse_temperature is not None:
        words.append("a finite temperature: averages over Boltzmann laws of the fields, in place of proximal points")
    return words


def _of_labels(problem: Problem) -> str:
    choices = len(problem.label_choices)
    return f", for each of {choices} choices of labels" if choices > 1 else ""


def _kinks(problem: Problem, overlaps: Overlaps) -> list[str]:
    part = integrated(problem)
    labels = part.label_choices[0][0]
    planes = len(part.planes("loss", part.constants(labels)))
    curved = len(part.solver.model.CURVED["loss"])
    channel = part.solver.channel
    words = []
    if planes:
        words.append(f"the loss is not smooth on {planes} plane{'s' * (planes > 1)}, at which integrals are split")
    if curved:
        words.append(f"it is not smooth on {curved} curved surface{'s' * (curved > 1)}, at which no rule is split")
    if getattr(channel, "CORNERS", False):
        words.append("its slope jumps: proximal points are searched piece by piece, and on corners")
    if problem.solver.model.LOSS_JUMPS:
        words.append("the loss itself jumps")
    return words or ["the loss is smooth"]


def _jumps(problem: Problem, averages: Averages | None) -> list[str]:
    if problem.inverse_temperature is not None or averages is None:
        return []
    if averages.bistable <= 0:
        return ["the Moreau objective has one minimum at every node: the proximal map does not jump"]
    return [
        f"the Moreau objective has a second minimum at a fraction {averages.bistable:.2g}: the proximal map jumps there"
    ]
