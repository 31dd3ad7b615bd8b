"""Second moments of the rows of every spectral atom, the variables of the dynamics, and their starts."""

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
from ...problems.overlaps import Overlaps, upper_triangle_indices
from ...problems.problem import Problem
from ...saddle_point.starts import start_coefficients

RANDOM = "random"
_OVERLAP_ROUNDING = 1e-9  # of overlaps that a start is constructed to have, relative
_GRAM_ROUNDING = 1e-12  # of eigenvalues of a Gram matrix, relative to the largest


@dataclass(frozen=True)
class Moments:
    """Second moments of rows (w, tau, pi), for each of A spectral atoms (docs/theory.md (19.5)).

    Attributes:
        S: E[w w^T], (A, s, s); T: E[w tau_c], (A, C, s); P: E[w pi^T], (A, s, t).
        phi: numbers trained with the weights, (P,).
    """

    S: np.ndarray
    T: np.ndarray
    P: np.ndarray
    phi: np.ndarray

    def pack(self) -> np.ndarray:
        """Return the independent components: upper triangles of S, T, P, phi."""
        rows, columns = upper_triangle_indices(self.S.shape[1])
        return np.concatenate([self.S[:, rows, columns].ravel(), self.T.ravel(), self.P.ravel(), self.phi])

    @classmethod
    def unpack(cls, vector: np.ndarray, problem: Problem) -> Moments:
        """Return the moments of components in the order of `pack`.

        Args:
            vector: the components.
            problem: the problem, which fixes the sizes.
        """
        atoms, (contexts, s, t, _) = len(problem.law.weights), problem.sizes
        rows, columns = upper_triangle_indices(s)
        after_S = atoms * len(rows)
        after_T = after_S + atoms * contexts * s
        after_P = after_T + atoms * s * t
        S = np.empty((atoms, s, s))
        S[:, rows, columns] = S[:, columns, rows] = vector[:after_S].reshape(atoms, -1)
        T, P = vector[after_S:after_T].reshape(atoms, contexts, s), vector[after_T:after_P].reshape(atoms, s, t)
        return cls(S, T, P, vector[after_P:])

    def overlaps(self, problem: Problem) -> Overlaps:
        """Return q, m, theta (docs/theory.md (19.8)); V, which the dynamics do not have, is the identity."""
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
    """Return identity matrices, read-only."""
    return np.broadcast_to(np.eye(shape[-1]), shape)


def moment_basis(problem: Problem) -> np.ndarray:
    """Return orthonormal columns (N, k) that span the packed moments of rows.

    T and P are linearly dependent, or vanish, as encodings and means are.
    """
    law, (contexts, s, t, trained) = problem.law, problem.sizes
    atoms = len(law.weights)
    zero = Moments(np.zeros((atoms, s, s)), np.zeros((atoms, contexts, s)), np.zeros((atoms, s, t)), np.zeros(trained))
    size = len(zero.pack())
    held = np.eye(size)
    first = atoms * s * (s + 1) // 2
    columns = [*held[:first], *held[size - trained :]]
    for atom, gram in enumerate(law.gram):
        values, vectors = np.linalg.eigh(gram)
        for vector in vectors[:, values > _GRAM_ROUNDING * max(values[-1], 1e-300)].T:
            for column in range(s):
                T, P = zero.T.copy(), zero.P.copy()
                T[atom, :, column], P[atom, column] = vector[:contexts], vector[contexts:]
                columns.append(Moments(zero.S, T, P, zero.phi).pack())
    return np.array(columns).T


def moments_of_mixture(problem: Problem, mix: np.ndarray, noise: np.ndarray) -> Moments:
    """Return the moments of rows w = mix z + noise, z = (tau, pi).

    Args:
        problem: the problem.
        mix: (s, C + t), or one for every atom.
        noise: its covariance, (s, s), or one for every atom.
    """
    law, contexts = problem.law, problem.contexts
    with_z = mix @ law.gram  # (A, s, C + t)
    phi = np.array([float(number["start"]) for number in problem.trained])
    S = with_z @ np.swapaxes(mix, -1, -2) + noise
    return Moments(S, np.swapaxes(with_z[..., :contexts], 1, 2), with_z[..., contexts:], phi)


def named_moments(problem: Problem, start: Any) -> tuple[str, Moments]:
    """Return the name of a start and its moments.

    Args:
        problem: the problem.
        start: `random` (W standard normal), a named start of the model, a mapping of overlaps (see
            `moments_with_overlaps`) or its text (see `parse_overlaps`), or `Moments`.

    Raises:
        InputError: it is none of these; the message lists the allowed ones.
    """
    s = problem.student_rank
    if isinstance(start, Moments):
        return "given", start
    if isinstance(start, Mapping):
        shown = ",".join(f"{name}={json.dumps(np.asarray(value).tolist())}" for name, value in start.items())
        return shown, moments_with_overlaps(problem, start)
    if start == RANDOM:
        return RANDOM, moments_of_mixture(problem, np.zeros((s, problem.contexts + problem.teacher_rank)), np.eye(s))
    if isinstance(start, str) and "=" in start:
        return start, moments_with_overlaps(problem, parse_overlaps(start))
    if start not in problem.solver.model.STARTS:
        known = describe_unknown("start", start, [RANDOM, *problem.solver.model.STARTS], problem.solver.name)
        raise InputError(f"{known}, or overlaps as q=..,theta=..")
    mix, deviation, _ = start_coefficients(problem, start)
    return str(start), moments_of_mixture(problem, mix, deviation**2 * np.eye(s))


def parse_overlaps(text: str) -> dict[str, Any]:
    """Return the mapping of a text such as `q=0.1,m_1=0.2,theta=[[[0.1]],[[0.2]]]`, split at commas outside brackets.

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


def moments_with_overlaps(problem: Problem, given: Mapping[str, Any]) -> Moments:
    """Return the moments of rows of least norm with given m and theta, plus normal noise that completes q.

    Args:
        problem: the problem.
        given: q, m, theta: arrays in the shape of the overlaps, (C, s, s), (C, s), (C, s, t), or with separate
            axes of tokens and clusters, as in JSON; a number stands for q times the identity in every context, theta
            likewise; single entries by the names of tables, as m_1 or theta_2. Other entries of m and theta are those
            of rows of least norm; q, if it is not given, that of standard normal noise in addition to them.

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
        numbers = _parse_numbers(name, value)
        if name == "q":
            q = _parse_block(name, numbers, (contexts, s, s), np.eye(s), problem)
            continue
        if name in shapes:
            block, wanted = name, [*np.ndenumerate(_parse_block(name, numbers, shapes[name], units[name], problem))]
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
        if off > _OVERLAP_ROUNDING * (1 + np.abs(wanted_values).max()):
            raise InputError(
                f"start: no weights have these m and theta; the nearest are off by {off:.3g} (encodings and means "
                "tie overlaps to each other)"
            )
    found = moments_of_mixture(problem, mix, np.eye(s))
    if q is None:
        return found
    # Of one covariance of the noise for all atoms, and of all contexts.
    missing = q - found.overlaps(problem).q
    noise = np.einsum("c,cij->ij", law.rho, missing) / (law.rho @ law.rho) + np.eye(s)
    if np.abs(q - moments_of_mixture(problem, mix, noise).overlaps(problem).q).max() > _OVERLAP_ROUNDING * (
        1 + np.abs(q).max()
    ):
        raise InputError("start: no weights with one law of their noise have these q in every context")
    if np.linalg.eigvalsh(noise)[0] < -_OVERLAP_ROUNDING:
        raise InputError("start: q is smaller than m and theta require: no such weights exist")
    return moments_of_mixture(problem, mix, noise)


def _parse_numbers(name: str, value: Any) -> np.ndarray:
    try:
        numbers = np.asarray(value, float)
    except (TypeError, ValueError):
        raise InputError(f"start: {name} = {value!r}: numbers are expected") from None
    if not np.isfinite(numbers).all():
        raise InputError(f"start: {name} contains numbers that are not finite")
    return numbers


def _parse_block(
    name: str, numbers: np.ndarray, shape: tuple[int, ...], unit: np.ndarray | None, problem: Problem
) -> np.ndarray:
    """Return an overlap of every context, from a number, a list for the contexts, or all entries."""
    if numbers.ndim == 0 and unit is not None:
        return np.broadcast_to(numbers * unit, shape)
    if numbers.size == np.prod(shape):
        return numbers.reshape(shape)
    shown = (problem.tokens, problem.clusters, *shape[1:])
    allowed = f"an array of shape {shape} or {shown}" + ("" if unit is None else ", or a number")
    raise InputError(f"start: {name} has shape {numbers.shape}; {allowed} is expected")
