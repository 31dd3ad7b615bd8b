"""The equations of one token (docs/theory.md (4.3) to (8.13)) by adaptive quadrature and brute force, sharing no code.

Where a loss reads one combination x of the columns of W, the proximal map at all omega at once is the lower convex hull
of x^2 / 2 + V loss(x) on a refined grid: averages run over x where it touches, d omega = (1 + V loss'') dx, and over
omega where the minimiser rests on a corner. Where it reads two, every proximal point is searched for on a grid.
"""
# ruff: noqa: E731

from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, product
from typing import Any

import numpy as np
import sympy as sp
from envelope import REACH, SPREAD, Hull
from quadrature import adaptive, compiled, crossings, edges_of
from scipy.special import ndtr


@dataclass
class Setting:
    """A problem in numbers: expressions hold symbols of fields, noise, label and trained numbers, and no others.

    Attributes:
        normal: noise -> variance; discrete: noise -> (values, their probabilities, which may hold teacher's fields).
        labels, gamma, gram, taught, weights: the law of the token (1.6), as of `Tokens`.
        trained: number -> ridge. ridge: a number, or one a column. l1: strength of |w| next to it, of one column.
        marks: (expression, width) of features where the expression is of the order of the width.
        known: what was evaluated, by tolerance and overlaps.
    """

    loss: sp.Expr
    metric: sp.Expr
    student: list[sp.Symbol]
    teacher: list[sp.Symbol]
    alpha: float
    ridge: Any
    l1: float = 0.0
    label: Any = None
    labels: Any = (1.0,)
    normal: dict = field(default_factory=dict)
    discrete: dict = field(default_factory=dict)
    trained: dict = field(default_factory=dict)
    weights: Any = (1.0,)
    gamma: Any = ((1.0,),)
    gram: Any = (((0.0, 0.0), (0.0, 1.0)),)
    taught: Any = ((0.0,),)
    marks: tuple = ()
    known: dict = field(default_factory=dict, compare=False, repr=False)


def target_of(e: Any, corners: list, fields: list, symbols: list) -> tuple[Any, Any, list]:
    """Return T, expression and corners at x + T where these hold x - T alone of all fields; else None and both."""
    x, exact = fields[0], [sp.nsimplify(each, rational=True) for each in (e, *corners) if each.has(fields[0])]
    for one in exact[0].atoms(sp.Add) if len(fields) == 1 and exact else ():
        c = sp.diff(one, x)
        if c.is_number and c != 0:
            T = sp.expand(x - one / c)
            moved = [sp.expand(each.subs(x, x + T)) for each in exact]
            if not any(each.free_symbols & {*symbols} - {x} for each in moved):
                T, *moved = map(sp.N, (T, *moved))
                return T, moved[0], moved[1:]
    return None, e, corners


def common_zeros(corners: list, fields: list) -> list:
    """Return what is zero where two corners meet, one of them linear in the only field."""
    x = fields[0]
    linear = [one for one in corners if len(fields) == 1 and one.has(x) and sp.diff(one, x).is_number]
    found = {sp.expand(other.subs(x, x - one / sp.diff(one, x))) for one in linear for other in corners}
    return [each for each in found if not each.is_number and not each.has(x)]


class Side:
    """Averages over the law (3.12) at one label and one value of discrete noise, first over z that is read of Y, u."""

    def __init__(self, s: Setting, state: dict, k: int, values: dict, e: Any, tolerance: float) -> None:
        """Reduce the expression to the combinations that it reads and place their law."""
        inputs = [*s.teacher, *s.normal]
        given = {**dict(zip(s.trained, state["phi"], strict=True)), **values, s.label: k}
        chance = sp.Mul(*[s.discrete[u][1][list(s.discrete[u][0]).index(v)] for u, v in values.items()])
        slopes, marks = [sp.diff(e, number) for number in s.trained], [mark for mark, _ in s.marks]
        every = [sp.sympify(x).subs({a: b for a, b in given.items() if a}) for x in (e, chance, *slopes, *marks)]
        A = {x: row for x, row in zip(inputs, np.eye(len(inputs)), strict=True) if any(one.has(x) for one in every)}
        for x, u in combinations(inputs, 2):  # what holds x + u only is written in u, which stands for the sum
            if {x, u} <= A.keys() and not any(one.subs(u, u - x).has(x) for one in every):
                every, A[u] = [one.subs(u, u - x) for one in every], A[u] + A.pop(x)
        fields, c = list(s.student), np.eye(len(s.student))
        for way in ((0, 1), (1, 0), (1, 1), (1, -1)) if len(fields) == 2 else ():
            x, y = fields if way[0] else fields[::-1]  # x becomes the combination, y has to drop out
            turned = [one.subs(x, x - way[1] * y if way[0] else x) for one in every]
            if not any(one.has(y) for one in turned):
                every, fields, c = turned, [x], np.array([way], float)
                break
        self.e, self.chance, self.phi_slopes = every[0], every[1], every[2 : 2 + len(s.trained)]
        marks = list(zip(every[2 + len(s.trained) :], [width for _, width in s.marks], strict=True))
        self.corners = [*set().union(*map(edges_of, every)), *(mark for mark, _ in marks)]
        self.corners += common_zeros(self.corners, fields)
        self.lines = self.corners + [mark + j * width for mark, width in marks for j in (-6, -3, -1, 1, 3, 6)]
        self.fields, self.c, self.symbols, self.r, self.tolerance = fields, c, [*A, *fields], len(A), tolerance
        self.moved = target_of(self.e, self.corners, self.fields, self.symbols)
        self.has_target = self.moved[0] is not None
        self.stretch = 1 - tolerance**0.25 / 3  # of the first edges: evaluations to two tolerances share no node
        n, t, C, r = len(s.student), len(s.teacher), len(s.labels), self.r
        rho = np.einsum("a,a,aij->ij", s.weights, np.asarray(s.gamma)[:, k], np.asarray(s.gram)[:, C:, C:])
        law = np.diag([*np.zeros(n + t), *map(float, s.normal.values())])  # of (omega, Y, normal noise)
        law[: n + t, : n + t] = np.block([[state["q"][k], state["theta"][k]], [state["theta"][k].T, rho]])
        reads = np.zeros((r + len(c), len(law)))
        reads[:r, n:], reads[r:, :n] = np.array([*A.values()]).reshape(r, len(inputs)), c
        self.mean = reads @ np.concatenate([state["m"][k], s.taught[k], np.zeros(len(s.normal))])
        self.root = np.linalg.cholesky(reads @ law @ reads.T * (1 + 1e-15 * np.eye(len(reads))))
        self.regression = law[: n + t] @ reads.T @ np.linalg.pinv(reads @ law @ reads.T, hermitian=True)
        self.V = c @ state["V"][k] @ c.T

    def over(self, inner: Any, dims: int) -> np.ndarray:
        """Return the averages of the rows of inner(v) over the first `dims` coordinates of v = (z, omega)."""
        last = {e: max((j for j, x in enumerate(self.symbols) if e.has(x)), default=-1) for e in self.lines}
        normal = lambda x: np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)

        def along(j: int, xi: np.ndarray) -> np.ndarray:
            if j == dims:
                v = self.mean[:j, None] + self.root[:j, :j] @ xi
                return np.concatenate([inner(part) for part in np.array_split(v, v.shape[1] // 1000 + 1, 1)], axis=1)
            owners, mean, root = np.arange(xi.shape[1]), self.mean[: j + 1, None], self.root[: j + 1, : j + 1]
            at = lambda x, owner: np.concatenate([xi[:, owner.ravel()], x.reshape(1, -1)])
            grid, places = (
                np.tile(np.linspace(-REACH, REACH, 381), (len(owners), 1)),
                np.tile(SPREAD[::3] * self.stretch, len(owners)),
            )
            found = [(places, np.repeat(owners, len(SPREAD[::3])))]
            f = compiled([line for line, place in last.items() if place == j] or [sp.S.One], self.symbols[: j + 1])
            found.append(crossings(lambda x, i: f(*(mean + root @ at(x, i))).reshape(-1, *x.shape), grid, owners))
            x, of = map(np.concatenate, zip(*found, strict=True))
            x, of = x[np.lexsort((x, of))], np.sort(of)
            inside = (of[1:] == of[:-1]) & (x[1:] > x[:-1])
            part = lambda x, owner: along(j + 1, at(x, owner)) * normal(x)
            return adaptive(part, x[:-1][inside], x[1:][inside], of[:-1][inside], len(owners), self.tolerance)

        return along(0, np.zeros((0, 1)))[:, 0]

    def value(self) -> float:
        """Return the average of the expression itself, at omega."""
        f = compiled([self.e * self.chance], self.symbols)
        return float(self.over(lambda v: f(*v) if len(v) else f().reshape(1, 1), len(self.symbols))[0])

    def channel(self) -> dict[str, np.ndarray]:
        """Return the averages that (5.2) to (5.12) and (8.11) ask for."""
        c, n = self.c, len(self.c)
        gradient = [sp.diff(self.e, a) for a in self.fields]
        hessian = [sp.diff(g, a) for g in gradient for a in self.fields]
        self.f = compiled([self.e, *gradient, *hessian, *self.phi_slopes], self.symbols)
        self.loss, self.chances = (compiled([e], self.symbols[:m]) for e, m in ((self.e, None), (self.chance, self.r)))
        T, e, corners = self.moved
        self.hull, self.of, self.target = (
            None,
            (np.inf, -np.inf),
            self.has_target and compiled([T], self.symbols[: self.r]),
        )
        shown = self.fields if self.has_target else self.symbols
        slopes = [sp.diff(e, self.fields[0], k) for k in range(3)]
        self.functions = [compiled(rows, shown) for rows in (slopes, slopes[:1], corners or [sp.S.One])]
        found = self.over(*((self.on_hull, self.r) if n == 1 else (self.searched, self.r + n)))
        shapes = [(n,), (n, n), (1,), (n, n, n, n), (n, len(self.symbols)), (len(self.phi_slopes),)]
        parts = np.split(found, np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
        g, gg, M, square, away, phi = (part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))
        square = np.einsum("ijkl,ia,jb,kd,le->abde", square, c, c, c, c)
        about = c.T @ away @ self.regression.T  # E[g (delta omega, delta Y)]
        return {"g": c.T @ g, "gg": c.T @ gg @ c, "about": about, "M": M[0], "phi": phi, "square": square}

    def rows(self, v: np.ndarray, X: np.ndarray, rests: np.ndarray | None, weight: np.ndarray) -> np.ndarray:
        """Return what is averaged at fields v = (z, omega) with proximal points X, times a weight."""
        n, r, V = len(X), self.r, self.V
        f = self.f(*v[:r], *X)
        H, g = f[1 + n : 1 + n + n * n].reshape(n, n, len(f[0])), np.linalg.solve(V, X - v[r:])
        bend = np.moveaxis(np.eye(n)[:, :, None] + np.einsum("abp,bc->acp", H, V), 2, 0)
        with np.errstate(all="ignore"):
            D = -H / bend.T if n == 1 else -np.moveaxis(np.linalg.solve(bend, np.moveaxis(H, 2, 0)), 0, 2)
        D = D * np.nan if n > 1 and self.corners else D  # a search does not know which response a corner has
        if rests is not None:
            g, D = np.where(rests, g, -f[1 : 1 + n]), np.where(rests, -1 / V[0, 0], D)
        M, away = f[0] + np.einsum("ap,ab,bp->p", g, V, g) / 2, v - self.mean[:, None]
        square = np.einsum("acp,bdp->abcdp", D, D)  # the image of a matrix E is D_ac E_cd D_bd
        parts = [g, g[:, None] * g, M, square, g[:, None] * away, f[1 + n + n * n :]]
        chance = self.chances(*v[:r])[0] if r else float(self.chance)
        return np.concatenate([part.reshape(-1, len(f[0])) for part in parts]) * (weight * chance)

    def on_hull(self, z: np.ndarray) -> np.ndarray:
        """Return the averages over one omega at every z, (n, len(z))."""
        r, V, xi = self.r, self.V[0, 0], np.linalg.solve(self.root[: self.r, : self.r], z - self.mean[: self.r, None])
        centre, width = self.mean[r] + self.root[r, :r] @ xi, self.root[r, r]
        T = self.target(*z)[0] if self.target else 0 * centre  # of x - T alone, one hull holds everywhere
        low, high = np.min(centre - T) - REACH * width, np.max(centre - T) + REACH * width
        if self.target and not self.of[0] <= low <= high <= self.of[1]:
            low, high = min(low, self.of[0]) - 5 * width, max(high, self.of[1]) + 5 * width
            self.of = low, high
            self.hull = Hull(*self.functions, V, low, high, width)
        found = []
        for i in range(len(centre)):
            at = [partial(f, *z[:, i]) for f in self.functions]
            hull = self.hull or Hull(*at, V, centre[i] - REACH * width, centre[i] + REACH * width, width)
            found.append(hull.within(centre[i] - T[i]) + T[i])
        owner = np.repeat(np.arange(len(centre)), [len(one) for one in found])
        a, b, place = np.concatenate(found).T

        def f(x: np.ndarray, j: np.ndarray) -> np.ndarray:  # x, or omega where x rests at a place
            i, rests = owner[j], ~np.isnan(place[j])
            X = np.where(rests, place[j], x)
            w, bend = np.array([x, 1 + 0 * x]) + V * self.f(*z[:, i], X)[1:3] * ~rests
            normal = np.exp(-(((w - centre[i]) / width) ** 2) / 2) / (width * np.sqrt(2 * np.pi))
            return self.rows(np.concatenate([z[:, i], [w]]), X[None], rests, bend * normal)

        total = adaptive(f, a, b, np.arange(len(a)), len(a), self.tolerance)
        return np.array([np.bincount(owner, part, len(centre)) for part in total])

    def searched(self, v: np.ndarray) -> np.ndarray:
        """Return the rows at points (z, omega) of two fields, proximal points searched for on grids and refined."""
        z, w, root = v[: self.r], v[self.r :], np.linalg.cholesky(self.V)

        def least(best: np.ndarray, size: Any, points: int) -> tuple[np.ndarray, np.ndarray]:
            """Return the lowest point of a grid around the best (2, n), in units of the root of V around omega."""
            t = best[:, :, None] + np.array(list(product(np.linspace(-1, 1, points), repeat=2))).T[:, None] * size
            X = w[:, :, None] + np.einsum("ab,bpk->apk", root, t)
            F = (t**2).sum(axis=0) / 2 + self.loss(*[np.broadcast_to(a[:, None], X.shape[1:]) for a in z], *X)[0]
            at = np.arange(len(F)), np.argmin(F, axis=1)
            return t[:, *at], F[at]

        best, size = np.zeros(w.shape), np.full((1, w.shape[1], 1), 3.0)
        for _ in range(3):  # a square that holds whatever lies lower than omega itself
            drop = np.maximum(self.loss(*z, *w)[0] - least(best, size, 31)[1], 0)
            size = np.maximum(size, 1.5 * np.sqrt(2 * drop)[None, :, None])
        best, size = least(best, size, 61)[0], size / 15
        for _ in range(40):
            best, size = least(best, size, 5)[0], size * 0.6
        return self.rows(v, w + root @ best, None, np.ones(v.shape[1]))


def sides(s: Setting, state: dict, expression: Any, tolerance: float) -> Any:
    """Yield label, its probability and the side of the expression, for every value of the discrete noise."""
    for (k, p), *values in product(enumerate(s.labels), *(of for of, _ in s.discrete.values())):
        if p:
            yield k, p, Side(s, state, k, dict(zip(s.discrete, values, strict=True)), expression, tolerance)


def evaluate(s: Setting, state: dict[str, np.ndarray], tolerance: float) -> dict[str, np.ndarray]:
    """Return the conjugates and overlaps that follow from the overlaps by one evaluation, losses and replicon."""
    C, n, t, phi = len(s.labels), len(s.student), len(s.teacher), state["phi"]
    gamma, gram, ridge = np.asarray(s.gamma, float), np.asarray(s.gram, float), np.diag(np.broadcast_to(s.ridge, n))
    hats, M, kappa = {name: 0 * state[name] for name in ("q", "V", "m", "theta")}, 0.0, np.array([*s.trained.values()])
    square, about, slope = np.zeros((C, n * n, n * n)), np.zeros((C, n, n + t)), kappa * phi
    for k, p, side in sides(s, state, s.loss, tolerance):
        found = {name: s.alpha * p * value for name, value in side.channel().items()}
        hats["q"][k], hats["m"][k] = hats["q"][k] + found["gg"], hats["m"][k] + found["g"]
        about[k], square[k] = about[k] + found["about"], square[k] + found["square"].reshape(n * n, -1)
        M, slope = M + found["M"], slope + found["phi"]
    for k in range(C):
        rho, theta = np.einsum("a,a,aij->ij", s.weights, gamma[:, k], gram[:, C:, C:]), state["theta"][k]
        read = np.linalg.pinv(state["q"][k], 1e-12, hermitian=True)  # what the loss does not read may be zero
        back = read @ theta
        hats["theta"][k] = (about[k, :, n:] - about[k, :, :n] @ back) @ np.linalg.inv(rho - theta.T @ back)
        V = hats["theta"][k] @ back.T - about[k, :, :n] @ read
        hats["V"][k] = (V + V.T) / 2
    new, envelope, response = {name: 0 * value for name, value in hats.items()}, 0.0, np.zeros((C, C, n * n, n * n))
    for a, weight in enumerate(s.weights):
        G, theta, Q = (np.einsum("k,kab->ab", gamma[a], hats[name]) for name in ("V", "theta", "q"))
        R, beta, share = np.linalg.inv(ridge + G), np.concatenate([hats["m"].T, theta], axis=1), 1.0  # B = beta z
        second, cross = beta @ gram[a] @ beta.T + Q, R @ beta @ gram[a]
        if s.l1:
            root = np.sqrt(second.item())
            share, density = 2 * ndtr(-s.l1 / root), np.exp(-((s.l1 / root) ** 2) / 2) / np.sqrt(2 * np.pi)
            second = (second + s.l1**2) * share - 2 * s.l1 * root * density
        new["q"] += weight * np.multiply.outer(gamma[a], R @ second @ R)
        new["V"] += weight * share * np.multiply.outer(gamma[a], R)
        new["m"] += weight * share * cross[:, :C].T
        new["theta"] += weight * share * np.multiply.outer(gamma[a], cross[:, C:])
        envelope += weight * np.trace(R @ second) / 2
        response += weight * share * np.multiply.outer(np.outer(gamma[a], gamma[a]), np.kron(R, R))
    replicon = np.einsum("klxy,lyz->kxlz", response, square).reshape(C * n * n, -1)
    products = {
        name: (hats[name] * state[other]).sum() for name, other in zip(hats, ("V", "q", "m", "theta"), strict=True)
    }
    Phi = (products["V"] - products["q"]) / 2 - products["m"] - products["theta"] + envelope - M - kappa @ phi**2 / 2
    error = sum(p * side.value() for _, p, side in sides(s, state, s.metric, tolerance))
    replicon = np.nan if np.isnan(replicon).any() else np.abs(np.linalg.eigvals(replicon)).max()
    others = {"phi": phi - slope, "training_loss": -Phi, "test_error": error, "replicon": replicon}
    return {**{f"{name}_hat": value for name, value in hats.items()}, **new, **others}
