"""Second moments of the rows of every spectral atom, which the dynamics move, and where they start."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ...base.errors import InputError, describe_unknown
from ...problems.columns import entry_columns
from ...problems.overlaps import Overlaps, triangle
from ...problems.problem import Problem
from ...saddle_point.starts import start_mixture

RANDOM = "random"
_SAME = 1e-9  # of overlaps that a start is to have
_DEPENDENT = 1e-12  # of eigenvalues of a Gram matrix, relative to the largest


@dataclass(frozen=True)
class Moments:
    """Of the rows (w, tau, pi) of each of A atoms (docs/theory.md (19.5)).

    Attributes:
        S: E[w w^T], (A, s, s); T: E[w tau_c], (A, C, s); P: E[w pi^T], (A, s, t).
        phi: numbers trained with the weights, (P,).
    """

    S: np.ndarray
    T: np.ndarray
    P: np.ndarray
    phi: np.ndarray

    def pack(self) -> np.ndarray:
        """Independent components: upper triangles of S, T, P, phi."""
        rows, columns = triangle(self.S.shape[1])
        return np.concatenate([self.S[:, rows, columns].ravel(), self.T.ravel(), self.P.ravel(), self.phi])

    @classmethod
    def unpack(cls, vector: np.ndarray, problem: Problem) -> Moments:
        """Of independent components in the order of `pack`."""
        atoms, (contexts, s, t, _) = len(problem.law.weights), problem.sizes
        rows, columns = triangle(s)
        after_S = atoms * len(rows)
        after_T = after_S + atoms * contexts * s
        after_P = after_T + atoms * s * t
        S = np.empty((atoms, s, s))
        S[:, rows, columns] = S[:, columns, rows] = vector[:after_S].reshape(atoms, -1)
        T, P = vector[after_S:after_T].reshape(atoms, contexts, s), vector[after_T:after_P].reshape(atoms, s, t)
        return cls(S, T, P, vector[after_P:])

    def overlaps(self, problem: Problem) -> Overlaps:
        """q, m, theta (docs/theory.md (19.8)); V, which nothing here knows, is the identity."""
        law = problem.law
        shares = law.weights[:, None] * law.gamma
        q = np.einsum("ac,aij->cij", shares, self.S)
        return Overlaps(
            q=q,
            V=_identities(q.shape),
            m=np.einsum("a,aci->ci", law.weights, self.T),
            theta=np.einsum("ac,aij->cij", shares, self.P),
            phi=self.phi,
        )


@cache
def _identities(shape: tuple[int, ...]) -> np.ndarray:
    """Read-only."""
    return np.broadcast_to(np.eye(shape[-1]), shape)


def possible(problem: Problem) -> np.ndarray:
    """Orthonormal columns (N, k) of the packed moments that rows can have: of encodings and means that depend on each
    other, or vanish, so do T and P."""
    law, (contexts, s, t, trained) = problem.law, problem.sizes
    atoms = len(law.weights)
    zero = Moments(np.zeros((atoms, s, s)), np.zeros((atoms, contexts, s)), np.zeros((atoms, s, t)), np.zeros(trained))
    size = len(zero.pack())
    held = np.eye(size)
    first = atoms * s * (s + 1) // 2
    columns = [*held[:first], *held[size - trained :]]
    for atom, gram in enumerate(law.gram):
        values, vectors = np.linalg.eigh(gram)
        for vector in vectors[:, values > _DEPENDENT * max(values[-1], 1e-300)].T:
            for column in range(s):
                T, P = zero.T.copy(), zero.P.copy()
                T[atom, :, column], P[atom, column] = vector[:contexts], vector[contexts:]
                columns.append(Moments(zero.S, T, P, zero.phi).pack())
    return np.array(columns).T


def of_mixture(problem: Problem, mix: np.ndarray, noise: np.ndarray) -> Moments:
    """Of rows w = mix z + noise, z = (tau, pi).

    Args:
        mix: (s, C + t); noise: covariance, (s, s); or both of every atom.
    """
    law, contexts = problem.law, problem.contexts
    with_z = mix @ law.gram  # (A, s, C + t)
    phi = np.array([float(number["start"]) for number in problem.trained])
    S = with_z @ np.swapaxes(mix, -1, -2) + noise
    return Moments(S, np.swapaxes(with_z[..., :contexts], 1, 2), with_z[..., contexts:], phi)


def start_of(problem: Problem, start: Any) -> tuple[str, Moments]:
    """A start by its name, by the overlaps that it is to have, or as moments; and how it is called.

    Args:
        start: `random` (W standard normal), a named start of the model, a mapping of overlaps (see `with_overlaps`) or
            a text of it as of `overlaps_in`, or `Moments`.

    Raises:
        InputError: it is none of these; the sentence lists what is allowed.
    """
    s = problem.student_rank
    if isinstance(start, Moments):
        return "given", start
    if isinstance(start, Mapping):
        shown = ",".join(f"{name}={json.dumps(np.asarray(value).tolist())}" for name, value in start.items())
        return shown, with_overlaps(problem, start)
    if start == RANDOM:
        return RANDOM, of_mixture(problem, np.zeros((s, problem.contexts + problem.teacher_rank)), np.eye(s))
    if isinstance(start, str) and "=" in start:
        return start, with_overlaps(problem, overlaps_in(start))
    if start not in problem.solver.model.STARTS:
        known = describe_unknown("start", start, [RANDOM, *problem.solver.model.STARTS], problem.solver.name)
        raise InputError(f"{known}, or overlaps as q=..,theta=..")
    mix, deviation, _ = start_mixture(problem, start)
    return str(start), of_mixture(problem, mix, deviation**2 * np.eye(s))


def overlaps_in(text: str) -> dict[str, Any]:
    """`q=0.1,m_1=0.2,theta=[[[0.1]],[[0.2]]]` as a mapping, split at the commas outside of brackets.

    Raises:
        InputError: it is of another form, or a name is given twice.
    """
    items, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    values: dict[str, Any] = {}
    for item in items:
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not name:
            raise InputError(f"start {text}: overlaps as q=0.1,m_1=0.2 are expected")
        if name in values:
            raise InputError(f"start {text}: {name} is given twice")
        try:
            values[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise InputError(f"start {text}: {name}={value} is no number and no JSON array of numbers") from None
    return values


def with_overlaps(problem: Problem, given: Mapping[str, Any]) -> Moments:
    """Rows of least norm with given overlaps, and normal noise beside, so that q is what is given.

    Args:
        given: q, m, theta: arrays in the shape of the overlaps, (C, s, s), (C, s), (C, s, t), or with tokens and
            clusters apart, as in JSON; numbers stand for q times the identity in every context, theta likewise; single
            entries by the names of tables, as m_1 or theta_2. What is not given of m and theta is what rows of least
            norm have; q, where it is not given, that of standard normal noise in addition to them.

    Raises:
        InputError: an unknown name, a wrong shape, or overlaps that no weights have.
    """
    law, (contexts, s, t, _) = problem.law, problem.sizes
    size = contexts + t
    shapes = {"m": (contexts, s), "theta": (contexts, s, t)}
    units: dict[str, np.ndarray | None] = {"m": None, "theta": np.eye(s, t)}
    known = {name: place for name, place in entry_columns(problem).items() if place[0] in shapes}
    # Rows of a linear system for mix (s, C + t), which has m_c = E[mix z tau_c], theta_c = E[gamma_c mix z pi^T].
    of_m = np.einsum("a,azc->cz", law.weights, law.gram[:, :, :contexts])
    of_theta = np.einsum("a,ac,azb->cbz", law.weights, law.gamma, law.gram[:, :, contexts:])
    rows, values, q = [], [], None
    for name, value in given.items():
        numbers = _numbers(name, value)
        if name == "q":
            q = _block(name, numbers, (contexts, s, s), np.eye(s), problem)
            continue
        if name in shapes:
            block, wanted = name, [*np.ndenumerate(_block(name, numbers, shapes[name], units[name], problem))]
        elif name in known and numbers.ndim == 0:
            block, place = known[name]
            wanted = [(np.unravel_index(place, shapes[block]), float(numbers))]
        else:
            raise InputError(describe_unknown("overlap", name, ["q", "m", "theta", *known], "the start"))
        for index, each in wanted:
            row = np.zeros((s, size))
            row[index[1]] = of_m[index[0]] if block == "m" else of_theta[index[0], index[2]]
            rows.append(row.ravel())
            values.append(each)
    mix = np.zeros((s, size))
    if rows:
        matrix, wanted_values = np.array(rows), np.array(values)
        mix = np.linalg.lstsq(matrix, wanted_values, rcond=1e-12)[0].reshape(s, size)
        off = float(np.abs(matrix @ mix.ravel() - wanted_values).max())
        if off > _SAME * (1 + np.abs(wanted_values).max()):
            raise InputError(
                f"start: no weights have these m and theta; the nearest are off by {off:.3g} (encodings and means "
                "tie overlaps to each other)"
            )
    found = of_mixture(problem, mix, np.eye(s))
    if q is None:
        return found
    # Of one covariance of the noise for all atoms, and of all contexts.
    missing = q - found.overlaps(problem).q
    noise = np.einsum("c,cij->ij", law.rho, missing) / (law.rho @ law.rho) + np.eye(s)
    if np.abs(q - of_mixture(problem, mix, noise).overlaps(problem).q).max() > _SAME * (1 + np.abs(q).max()):
        raise InputError("start: no weights with one law of their noise have these q in every context")
    if np.linalg.eigvalsh(noise)[0] < -_SAME:
        raise InputError("start: q is smaller than m and theta require: no such weights exist")
    return of_mixture(problem, mix, noise)


def _numbers(name: str, value: Any) -> np.ndarray:
    try:
        numbers = np.asarray(value, float)
    except (TypeError, ValueError):
        raise InputError(f"start: {name} = {value!r}: numbers are expected") from None
    if not np.isfinite(numbers).all():
        raise InputError(f"start: {name} contains numbers that are not finite")
    return numbers


def _block(
    name: str, numbers: np.ndarray, shape: tuple[int, ...], unit: np.ndarray | None, problem: Problem
) -> np.ndarray:
    """An overlap of every context, from a number, a list of them for the contexts, or all entries."""
    if numbers.ndim == 0 and unit is not None:
        return np.broadcast_to(numbers * unit, shape)
    if numbers.size == np.prod(shape):
        return numbers.reshape(shape)
    shown = (problem.tokens, problem.clusters, *shape[1:])
    allowed = f"an array of shape {shape} or {shown}" + ("" if unit is None else ", or a number")
    raise InputError(f"start: {name} has shape {numbers.shape}; {allowed} is expected")
