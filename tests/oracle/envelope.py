"""Proximal points of one field by the lower convex hull of x^2 / 2 + V loss(x): where they move, where they rest."""
# ruff: noqa: E731

from itertools import pairwise
from typing import Any

import numpy as np
from quadrature import crossings
from scipy.optimize import isotonic_regression

REACH = 9.5  # standard deviations to either side over which a normal law is integrated
STEP = 1e-13  # to either side of a corner or a step, relative
SPREAD = np.array([-REACH, -6.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 6.0, REACH])


class Hull:
    """The minimisers of (x - omega)^2 / (2 V) + loss(x) for all omega in an interval.

    Args:
        f: (x,) -> rows of the loss, its slope and its curvature; loss: the first of them; kinks: zero at corners.
        low, high: ends of the interval; width: standard deviation of omega.
    """

    def __init__(self, f: Any, loss: Any, kinks: Any, V: float, low: float, high: float, width: float) -> None:
        F = lambda x: x**2 / 2 + V * loss(x)[0]
        a, b, fixed, fine = low - width, high + width, [], []
        for _ in range(60):  # an interval that holds the minimisers at both ends of omega
            x = np.linspace(a, b, 601)
            first, last = np.argmin(F(x) - low * x), np.argmin(F(x) - high * x)
            a, b = a - (b - a) * (first == 0), b + (b - a) * (last == 600)
            if first > 0 and last < 600:
                break
        a -= (b - a) / 97  # no corner is on the grid by symmetry
        x = np.linspace(a, b, int(600 * max(1.0, (high - low) / (20 * width))) + 1)
        near = min(b - a, 20 * width + V) * np.geomspace(1e-8, 0.02, 30)
        around = lambda places: np.unique(np.concatenate([x, *(p + np.append(-near, near) for p in places)]))
        at = lambda x: np.unique(crossings(lambda x, _: kinks(x), x[None], np.zeros(1, int))[0])
        places = at(around(at(x)))  # |e| - a has two zeros next to that of e
        for p in places[np.diff(places, prepend=-np.inf) > 100 * STEP * np.maximum(1, np.abs(places))]:
            sides = p + np.array([-1, 1]) * STEP * max(1, abs(p))
            values = loss(sides)[0]
            fixed += [*sides] if abs(np.ptp(values)) > 1e-8 * (1 + np.abs(values).max()) else [p]
            fine += [*(p - near), *(p + near)]
        fixed, x = np.array(fixed), np.unique(np.concatenate([x, fixed, fine]))
        for level in range(6):
            slope = isotonic_regression(np.diff(F(x)) / np.diff(x), weights=np.diff(x)).x
            merged = np.concatenate([[False], slope[1:] == slope[:-1]])
            if level == 5:
                break
            ends = merged ^ np.roll(merged, -1)
            ends = 7 * (ends | np.roll(ends, 1) | np.roll(ends, -1))
            parts = np.clip(np.ceil(np.abs(np.gradient(slope)) / width * 6), 1, 6) + ends
            wide = np.diff(x) > 10 * STEP * np.maximum(1, np.abs(x[1:]))
            parts = np.where(wide & (slope > low - width) & (slope < high + width), parts, 1).astype(int)
            near = np.searchsorted(slope, [low - width, high + width]) + np.array([-2, 2])
            least, most = slope[np.clip(near, 0, len(slope) - 1)]  # what merged cells hold stays whole
            cell = np.repeat(np.arange(len(parts)), parts)
            part = (np.arange(len(cell)) - np.searchsorted(cell, cell)) / parts[cell]
            inside, last = (slope[cell] >= least) & (slope[cell] <= most), x[np.searchsorted(slope, most, "right")]
            x = np.unique(np.append((x[cell] + (x[cell + 1] - x[cell]) * part)[inside], last))
        starts, stops, events = np.flatnonzero(~merged), np.append(np.flatnonzero(~merged)[1:], len(slope)), []
        e = lambda p: 2 * STEP * np.maximum(1, np.abs(p))
        for p, q in zip(starts[stops - starts > 1], stops[stops - starts > 1], strict=True):
            y, w = F(x[p : q + 1]), slope[p]
            above = np.max(y - y[0] - w * (x[p : q + 1] - x[p])) / (1 + np.abs(y).max())
            if above > 1e-13:
                ends, is_fixed = x[[p, q]], np.isin(x[[p, q]], fixed)  # of a jump: tangents in common, or corners
                least = x[max(p - 1, 0)], x[q] + e(x[q]) if is_fixed[1] else x[q - 1]
                most = x[p] - e(x[p]) if is_fixed[0] else x[p + 1], x[min(q + 1, len(x) - 1)]
                for _ in range(14):
                    w, at = np.diff(F(ends))[0] / np.diff(ends)[0], f(ends)
                    ends = np.clip(ends - (ends + V * at[1] - w) / np.maximum(1 + V * at[2], 1e-9), least, most)
                events.append((*ends, w))
        free = [k for k in fixed[np.isin(fixed, x)] if all(k < p - 3 * e(p) or k > q + 3 * e(q) for p, q, _ in events)]
        slopes = ((k, f(k + e(k) * np.array([-1, 1]))[1]) for k in free)  # a mark is no corner
        events += [(k - e(k), k + e(k), np.nan) for k, s in slopes if np.ptp(s) > 1e-8 * (1 + np.abs(s).max())]
        bend = 1 + V * f(x)[2]
        rise = np.diff(bend)
        turns = (rise[:-1] * rise[1:] <= 0) & (np.abs(rise[:-1]) + np.abs(rise[1:]) > 1e-9 * (1 + np.abs(bend[1:-1])))
        cuts, (left, right, w) = np.union1d(x[1:-1][turns], free), np.array(sorted(events)).reshape(-1, 3).T
        edges = [[p, *cuts[(cuts > p) & (cuts < q)], q] for p, q in zip([x[0], *right], [*left, x[-1]], strict=True)]
        panels = np.array([pair for one in edges for pair in pairwise(one)])
        self.panels, self.x, self.slope, self.width = panels[panels[:, 0] < panels[:, 1]], x, slope, width
        before, after = (p + V * f(p)[1] for p in (left, right))
        middle = np.where(np.isnan(w), after, w)
        between = right[:-1] > left[1:]  # one jump ends at the corner that the next begins at
        after[:-1][between] = before[1:][between] = middle[1:][between]
        self.rests = np.array([[*before, *middle], [*middle, *after], [*left, *right]]).T

    def within(self, centre: float) -> np.ndarray:
        """Return rows (x, x', nan) over which the minimiser moves, (omega, omega', x) where it rests at x."""
        at = centre + self.width * SPREAD
        cuts = self.x[np.clip(np.searchsorted(self.slope, at), 1, len(self.x) - 2)]
        every = np.unique(np.concatenate([self.panels.ravel(), cuts]))
        every = every[(every >= cuts[0]) & (every <= cuts[-1])]
        middle = (every[1:] + every[:-1]) / 2
        of = np.searchsorted(self.panels[:, 0], middle) - 1
        moving = np.array([every[:-1], every[1:], np.nan * middle])[:, (of >= 0) & (middle < self.panels[of, 1])].T
        rests = self.rests.copy()
        rests[:, :2] = np.clip(rests[:, :2], at[0], at[-1])
        return np.concatenate([moving, rests[rests[:, 0] < rests[:, 1]]])
