"""Explanations why a quadrature rule was chosen: properties of the averages, and the rules that were tried."""

from __future__ import annotations

from collections.abc import Iterable

from ..integration import SaddlePointAverages
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_fields_of_loss


def explain_choice_of_rule(
    problem: Problem, overlaps: Overlaps, averages: SaddlePointAverages | None, tried: Iterable[str]
) -> list[str]:
    """Return sentences that explain the choice of the quadrature rule: dimensions, kinks and jumps, rules tried.

    Args:
        problem: the problem that was solved.
        overlaps: overlaps of the solution.
        averages: channel averages at the solution; None without a solution.
        tried: sentences about the rules tried, in order.
    """
    sentences = _describe_field_dimensions(problem) + _describe_kinks_of_loss(problem, overlaps)
    return [*sentences, *_describe_proximal_jumps(problem, averages), *tried]


def _describe_field_dimensions(problem: Problem) -> list[str]:
    reduced = reduce_to_fields_of_loss(problem)
    fields, teachers = problem.tokens * problem.student_rank, problem.tokens * problem.teacher_rank
    noise = len(problem.noise_scale)
    counted = (fields, "the student"), (teachers, "the teacher"), (noise, "noise")
    counts = ", ".join(f"{count} of {what}" for count, what in counted if count)
    words = [f"fields: {counts}, {problem.dimension} dimensions in all{_describe_label_assignments(problem)}"]
    if reduced is not problem:
        cases, plural = (
            _describe_label_assignments(reduced).replace("choices of labels", "cases"),
            "s" * (reduced.dimension > 1),
        )
        words.append(
            f"the loss depends on fewer combinations of them: {reduced.solver.channel.FIELDS} of the student, "
            f"{reduced.dimension} dimension{plural} in all{cases} (`saddleforge derive` names them)"
        )
    if problem.inverse_temperature is not None:
        words.append("a finite temperature: averages over Boltzmann laws of the fields, in place of proximal points")
    return words


def _describe_label_assignments(problem: Problem) -> str:
    choices = len(problem.label_probabilities)
    return f", for each of {choices} choices of labels" if choices > 1 else ""


def _describe_kinks_of_loss(problem: Problem, overlaps: Overlaps) -> list[str]:
    reduced = reduce_to_fields_of_loss(problem)
    labels = reduced.label_probabilities[0][0]
    planes = len(reduced.kink_planes("loss", reduced.constants(labels)))
    curved = len(reduced.solver.model.CURVED["loss"])
    channel = reduced.solver.channel
    words = []
    if planes:
        words.append(f"the loss is not smooth on {planes} plane{'s' * (planes > 1)}, at which integrals are split")
    if curved:
        words.append(f"it is not smooth on {curved} curved surface{'s' * (curved > 1)}, at which no rule is split")
    if getattr(channel, "CORNERS", False):
        words.append("its derivative jumps: proximal points are searched on every smooth piece, and at kinks")
    if problem.solver.model.LOSS_JUMPS:
        words.append("the loss itself jumps")
    return words or ["the loss is smooth"]


def _describe_proximal_jumps(problem: Problem, averages: SaddlePointAverages | None) -> list[str]:
    if problem.inverse_temperature is not None or averages is None:
        return []
    if averages.bistable <= 0:
        return ["the Moreau objective has one minimum at every node: the proximal map does not jump"]
    return [
        f"the Moreau objective has a second minimum at a fraction {averages.bistable:.2g}: the proximal map jumps there"
    ]
