"""Tilted averages on grids: two minima whose envelope has a kink, against integrals split there."""

import numpy as np
import pytest

from saddleforge.problems.compiled import load_compiled_loops

fill_tilted_sums_on_grids = load_compiled_loops("tilted_grid").fill_tilted_sums_on_grids

RATE, SOFT, JUMP, PLACE = 3.0, 0.7, 0.5, 0.21
SPREAD, LAW = 0.3, 0.9  # deviations of z and of omega_0
STIFF = 0.4  # of the direction along the kink


def envelope(r):
    """Return the envelope of two minima that change places at r = PLACE, and minus its slope."""
    return SOFT * r * r / 2 - JUMP * np.abs(r - PLACE), JUMP * np.sign(r - PLACE) - SOFT * r


def across():
    """f, <M>, <g>, <g> omega_0, <g>^2, <g^2> and (d<g>/domega_0)^2, averaged over omega_0, of one field."""
    at = np.linspace(-8, 8, 1601) * LAW
    law = np.exp(-(at**2) / 2 / LAW**2)
    x, w = np.polynomial.legendre.leggauss(60)
    sums = np.zeros((6, len(at)))
    for low, high in ((-9 * SPREAD - 0 * at, np.clip(PLACE - at, -9 * SPREAD, 9 * SPREAD)),
                      (np.clip(PLACE - at, -9 * SPREAD, 9 * SPREAD), 9 * SPREAD + 0 * at)):  # fmt: skip
        half = (high - low) / 2
        z = (low + high)[:, None] / 2 + half[:, None] * x
        cost, g = envelope(at[:, None] + z)
        share = half[:, None] * w * np.exp(-RATE * cost - z**2 / 2 / SPREAD**2) / np.sqrt(2 * np.pi) / SPREAD
        sums += [(share * values).sum(axis=1) for values in (1 + 0 * z, cost, g, g * g, z, z * g)]
    cost, g, square, drift, along = sums[1:] / sums[0]
    slope = (along - drift * g) / SPREAD**2
    known = np.log(sums[0]) / RATE, cost, g, g * at, g * g, square, slope**2
    return np.array(known) @ law / law.sum()


def along():
    """f, <M>, <g>^2 and <g^2> of STIFF t^2 / 2."""
    soft = 1 + RATE * SPREAD**2 * STIFF
    inner = SPREAD**2 / soft
    mean_square = LAW**2 / soft**2
    return (
        -np.log(soft) / (2 * RATE) - STIFF * LAW**2 / (2 * soft),
        STIFF * (inner + mean_square) / 2,
        STIFF**2 * mean_square,
        STIFF**2 * (inner + mean_square),
    )


def on_grid(normal, density, rates=(RATE,), spreads=(SPREAD**2,)):
    """Rows of the loop for the envelope along a normal, (1,) or (2,)."""
    size, step = len(normal), SPREAD / density
    counts = np.array([1 if size == 1 else 2 * int(9 * LAW / step), 2 * int(9 * LAW / step) + 1])
    corner = np.array([0.0 if size == 1 else -9.03 * LAW, -9.01 * LAW])
    i, j = np.indices(counts).reshape(2, -1)
    omega = (corner + step * np.stack([i, j], axis=1))[:, 2 - size :]
    tangent = np.array([-normal[-1], normal[0]])[:size] if size == 2 else np.zeros(1)
    cost, g = envelope(omega @ normal)
    t = omega @ tangent
    fields = np.outer(g, normal) - STIFF * np.outer(t, tangent)
    plane = np.diag([size - 1.0, 1.0])
    levels = len(rates)
    out = np.zeros((1, levels + 3 + size + (levels + 2) * size**2 + size**4))
    fill_tilted_sums_on_grids(
        0, 1, np.array([0, len(omega)]), counts[None], np.full(2, step), corner[None], cost + STIFF * t**2 / 2, fields,
        np.ones((len(omega), 1)), np.array(rates), np.multiply.outer(spreads, plane), np.zeros((1, 2)), plane / LAW**2,
        (2 * np.pi * LAW**2) ** (-size / 2), np.zeros(2), True, out,
    )  # fmt: skip
    return out[0]


def test_tilted_sums_of_one_field_across_a_kink_are_accurate():
    mass, value, cost, g, with_field, between, within, more, slope = on_grid(np.ones(1), 3.0)
    assert mass == pytest.approx(1, abs=1e-10)  # beyond the grid
    assert more == pytest.approx(1, abs=2e-4)  # carried back over a kink as it is
    found = [-value, cost, g, with_field, between, within, slope]
    assert np.allclose(found, across(), rtol=0, atol=3e-5)


@pytest.mark.parametrize("angle", [0.0, 0.4, np.pi / 4, 1.2])
def test_tilted_sums_of_two_fields_across_a_kink_are_accurate_at_any_angle(angle):
    normal = np.array([np.cos(angle), np.sin(angle)])
    out = on_grid(normal, 2.0)
    free, cost, g, with_field, between, within, slope = across()
    more = along()
    assert -out[1] == pytest.approx(free + more[0], abs=2e-5)
    assert out[2] == pytest.approx(cost + more[1], abs=2e-5)
    assert normal @ out[3:5] == pytest.approx(g, abs=2e-5)
    tangent = np.array([-normal[1], normal[0]])
    along_field, product, square = out[5:17].reshape(3, 2, 2)
    assert normal @ along_field @ normal == pytest.approx(with_field, abs=2e-5)
    assert normal @ product @ normal == pytest.approx(between, abs=2e-5)
    assert normal @ square @ normal == pytest.approx(within, abs=2e-5)
    assert tangent @ product @ tangent == pytest.approx(more[2], abs=1e-9)
    assert tangent @ square @ tangent == pytest.approx(more[3], abs=1e-9)
    G = np.einsum("abef,a,b,e,f->", out[18:].reshape(2, 2, 2, 2), *[normal] * 4)
    assert np.isclose(G, slope, rtol=0, atol=1e-4)


def test_two_levels_of_one_rate_are_one():
    """However the spread is shared out between them, but for the reach of each of the blurs."""
    normal = np.array([np.cos(0.4), np.sin(0.4)])
    one, two = on_grid(normal, 2.0), on_grid(normal, 2.0, rates=(RATE, RATE), spreads=np.array([0.6, 0.4]) * SPREAD**2)
    assert two[1:3] == pytest.approx([one[1], two[2]], abs=1e-6)
    assert two[3] == pytest.approx(one[2], abs=1e-6)
    assert two[4:14] == pytest.approx(one[3:13], abs=2e-6)  # <g>, <g> omega_0, <g> <g>
    assert two[18:] == pytest.approx(one[13:], abs=1e-5)  # <g g>, what is carried back, G G


def test_a_kink_costs_no_order():
    """Without what sums miss there the error would fall with the square of the step."""
    exact = across()[5]
    errors = [abs(on_grid(np.ones(1), density)[6] - exact) for density in (1.5, 3.0, 6.0)]
    assert errors[2] < 2e-7
    assert errors[1] < errors[0] / 5
