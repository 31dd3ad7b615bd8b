"""Losses of one field: their pieces, the minima of the Moreau objective in them, and panels between the places at which
the proximal map jumps or bends (docs/theory.md section 11).

What a model decides are functions of its generated solver, which `bind` takes the addresses of: what calls them
by address is compiled once on a machine, not once a solver.
"""

import math

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

_SAME = 1e-10  # values that differ by less, relative to their size, are one
_LEAST_SHARE = 1e-3  # of a first estimate of an average of squares, with which panels are compared at the least
_NUMBER = types.float64
_ARRAY = types.Array(types.float64, 1, "C")
_AT = types.CPointer(types.float64)  # what an array is to a function of a model, which knows its size
_PAIR = types.UniTuple(_NUMBER, 2)
_FUNCTIONS = (
    ("piece", types.UniTuple(_NUMBER, 3)(_NUMBER, _NUMBER, _AT, _AT)),
    ("edges", types.int64(_AT, _AT, _AT)),
    ("bounds", types.UniTuple(_PAIR, 2)(_NUMBER, _NUMBER, _NUMBER, _AT, _AT)),
    ("least_curvature", _NUMBER(_AT, _AT)),
    ("narrow", _ARRAY(_AT, _AT)),
    ("implicit_kinks", _ARRAY(_NUMBER, _AT, _AT)),
)
_MODEL = types.UniTuple(types.intp, len(_FUNCTIONS) + 1)
# Entries of a model: functions that its loss lacks are 0.
BOUNDS, LEAST_CURVATURE, NARROW, IMPLICIT_KINKS, PLACES = 2, 3, 4, 5, 6


@intrinsic
def bind(typing, piece, edges, bounds, least_curvature, narrow, implicit_kinks, places):
    """Return the addresses of a loss's functions (0 for None, which it lacks) and its number of places: its model.

    `piece_at`, `edges_of`, `bounds_on`, `least_curvature`, `narrow_places` and `implicit_kinks` call them, and say
    what they return.
    """
    given = (piece, edges, bounds, least_curvature, narrow, implicit_kinks)
    for (name, signature), function in zip(_FUNCTIONS, given, strict=True):
        found = None if function == types.none else function.get_call_type(typing, signature.args, {})
        if found is not None and found.return_type != signature.return_type:
            raise TypingError(f"{name} returns {found.return_type}, not {signature.return_type}")

    def generate(context, builder, _, arguments):
        addresses = []
        for (_, signature), function in zip(_FUNCTIONS, given, strict=True):
            if function == types.none:
                addresses.append(context.get_constant(types.intp, 0))
                continue
            compiled = function.dispatcher.overloads[tuple(signature.args)]
            context.add_linking_libs([compiled.library])
            pointer = context.declare_function(builder.module, compiled.fndesc)
            addresses.append(builder.ptrtoint(pointer, context.get_value_type(types.intp)))
        return context.make_tuple(builder, _MODEL, [*addresses, arguments[-1]])

    return _MODEL(*given, types.intp), generate


def _call(entry):
    """Return the signature of function number `entry` of a model, after the model itself, and the code of a call."""
    signature = _FUNCTIONS[entry][1]
    array = make_array(_ARRAY)

    def generate(context, builder, _, arguments):
        given = [
            array(context, builder, value).data if kind == _AT else value
            for kind, value in zip(signature.args, arguments[1:], strict=True)
        ]
        address = builder.extract_value(arguments[0], entry)
        kind = context.call_conv.get_function_type(signature.return_type, signature.args)
        pointer = builder.inttoptr(address, kind.as_pointer())
        status, result = context.call_conv.call_function(builder, pointer, signature.return_type, signature.args, given)
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return result

    return signature.return_type(_MODEL, *(_ARRAY if kind == _AT else kind for kind in signature.args)), generate


@intrinsic
def piece_at(typing, model, x, reference, known, c):
    """Return the loss at x as it is in the piece of the reference, and its first and second derivative."""
    return _call(0)


@intrinsic
def edges_of(typing, model, known, c, out):
    """Fill out with the ends of the pieces, ascending, infinities first and last; returns how many pieces there are."""
    return _call(1)


@intrinsic
def bounds_on(typing, model, low, high, reference, known, c):
    """Return bounds (lower, upper) of slope and curvature on [low, high], as in the piece of the reference."""
    return _call(BOUNDS)


@intrinsic
def least_curvature(typing, model, known, c):
    """Return a lower bound on the second derivative of the loss in x."""
    return _call(LEAST_CURVATURE)


@intrinsic
def narrow_places(typing, model, known, c):
    """Return places around which the loss may change within a width, and the widths, one after the other."""
    return _call(NARROW)


@intrinsic
def implicit_kinks(typing, model, x, known, c):
    """Return what vanishes where the loss may bend within a piece."""
    return _call(IMPLICIT_KINKS)


@njit(cache=True, error_model="numpy")
def insert_minimum(found, count, x, value):
    """Put the minimum (x, value), x a tuple, in its place among the first `count` rows of found (most, FIELDS + 1).

    Returns how many rows there are then: as many as before where it is one of them, or higher than as many as fit.
    """
    size = len(x)
    square = 0.0
    for i in range(size):
        square += x[i] * x[i]
    for n in range(count):
        distance = 0.0
        for i in range(size):
            distance += (x[i] - found[n, i]) * (x[i] - found[n, i])
        if distance <= 1e-8 * square + 1e-12:
            if found[n, size] <= value:
                return count
            # The lower one stays.
            count -= 1
            for k in range(n, count):
                for i in range(size + 1):
                    found[k, i] = found[k + 1, i]
            break
    place = 0
    while place < count and found[place, size] <= value:
        place += 1
    if place == found.shape[0]:
        return count
    count = min(count + 1, found.shape[0])
    for n in range(count - 1, place, -1):
        for i in range(size + 1):
            found[n, i] = found[n - 1, i]
    for i in range(size):
        found[place, i] = x[i]
    found[place, size] = value
    return count


@njit(cache=True, error_model="numpy")
def insert_place(edges, count, place):
    """Put a place among the first `count` edges, ascending, unless it is known, no number or below the first; returns
    how many there are then."""
    if not edges[0] < place < math.inf:
        return count
    n = count
    while edges[n - 1] > place:
        n -= 1
    if edges[n - 1] == place:
        return count
    for k in range(count, n, -1):
        edges[k] = edges[k - 1]
    edges[n] = place
    return count + 1


@njit(cache=True, error_model="numpy")
def inside(low, high):
    """Return a point of an interval, of which an end may be infinite."""
    if low == -math.inf:
        return 0.0 if high == math.inf else high - 1.0
    return low + 1.0 if high == math.inf else 0.5 * (low + high)


@njit(cache=True, error_model="numpy")
def piece_of(edges, x):
    """Return the number of the piece that holds x, the lower one where x is between two; the last edge is infinite."""
    piece = 0
    while edges[piece + 1] < x:
        piece += 1
    return piece


@njit(cache=True, error_model="numpy")
def differ(one, other):
    """Return whether two numbers differ by more than rounding."""
    return abs(one - other) > _SAME * (1.0 + abs(one) + abs(other))


@njit(cache=True, error_model="numpy")
def is_minimum(left, left_slope, right, right_slope):
    """Return whether a function of these values and slopes on the two sides of an edge has a local minimum there."""
    falls = left_slope <= 0.0
    rises = right_slope >= 0.0
    if differ(left, right):
        # The lower value is there; the side that is higher leads down whatever its slope.
        return rises if left > right else falls
    return falls and rises


@njit(cache=True, error_model="numpy")
def push(stack, depth, a, x_a, b, x_b):
    """Put an interval and the proximal points at its ends on a stack (most, 4); returns how many there are then."""
    stack[depth, 0] = a
    stack[depth, 1] = x_a
    stack[depth, 2] = b
    stack[depth, 3] = x_b
    return depth + 1


@njit(cache=True, error_model="numpy")
def halve(boxes, held, low, middle, high):
    """Put both halves of an interval on a stack (most, 2), the lower one on top; returns how many there are then."""
    boxes[held, 0] = middle
    boxes[held, 1] = high
    boxes[held + 1, 0] = low
    boxes[held + 1, 1] = middle
    return held + 2


@njit(cache=True, error_model="numpy")
def longer(values, size):
    """Return the values (N,) at the beginning of `size` places."""
    out = np.empty(size, values.dtype)
    for n in range(len(values)):
        out[n] = values[n]
    return out


@njit(cache=True, error_model="numpy")
def _one_sided_values(model, edges, piece, known, c):
    """Return the loss, its slope and its curvature before the end of a piece, and after it."""
    end = edges[piece + 1]
    before, before_slope, before_curvature = piece_at(model, end, inside(edges[piece], end), known, c)
    after, after_slope, after_curvature = piece_at(model, end, inside(end, edges[piece + 2]), known, c)
    return before, before_slope, before_curvature, after, after_slope, after_curvature


@njit(cache=True, error_model="numpy")
def _descend(model, x, low, high, reference, w, p, known, c):
    """Minimise the objective of one piece from x within [low, high]: modified Newton with backtracking.

    Returns x, value, curvature, and the decrement before the last step (-1: not converged, -2: it ends at an edge).
    """
    floor = 0.1 * p
    tiny = 1e-4 * p
    x = min(max(x, low), high)
    loss, slope, curvature = piece_at(model, x, reference, known, c)
    for _ in range(100):
        value = loss + 0.5 * p * (x - w) ** 2
        if not curvature < math.inf:
            break  # at an edge, from which no step of Newton's method leads away
        slope += p * (x - w)
        curvature += p
        if (x == low and slope > 0.0) or (x == high and slope < 0.0):
            return x, value, curvature, -2.0
        modified = curvature < tiny
        step = -slope / (max(floor, -curvature) if modified else curvature)
        decrement = -slope * step
        if not modified and decrement <= 1e-16 * (1.0 + abs(value)):
            return min(max(x + step, low), high), value - 0.5 * decrement, curvature, decrement
        # No step is longer than the interval of (15.1) is wide, radius^2 = 2 value / p.
        if value > 0.0 and step * step > 8.0 * value / p:
            step = math.copysign(math.sqrt(8.0 * value / p), step)
        # Backtracking until the value falls by 1e-4 of what the slope promises, rounding allowed for (Armijo).
        for _ in range(40):
            new_x = min(max(x + step, low), high)
            loss, new_slope, curvature = piece_at(model, new_x, reference, known, c)
            new_value = loss + 0.5 * p * (new_x - w) ** 2
            if new_value <= value + 1e-4 * slope * (new_x - x) + 1e-15 * (1.0 + abs(value)):
                break
            step *= 0.3
        x = new_x
        slope = new_slope
        if not new_value < math.inf:
            break
    return x, value, curvature, -1.0


@njit(cache=True, error_model="numpy")
def _minimum_between(model, low, high, reference, w, p, known, c):
    """Find the minimum of the objective within [low, high], on which its slope grows: Newton's method, or else halving.

    Returns x, value, and the decrement before the last step (-2: the slope has one sign on [low, high]).
    """
    _, slope, _ = piece_at(model, low, reference, known, c)
    _, rise, _ = piece_at(model, high, reference, known, c)
    slope += p * (low - w)
    rise += p * (high - w)
    if slope > 0.0 or rise < 0.0:
        return low, math.nan, -2.0
    x = low - slope * (high - low) / (rise - slope)
    if not low < x < high:
        x = 0.5 * (low + high)
    for _ in range(200):
        loss, slope, curvature = piece_at(model, x, reference, known, c)
        value = loss + 0.5 * p * (x - w) ** 2
        slope += p * (x - w)
        if slope > 0.0:
            high = x
        else:
            low = x
        step = -slope / (curvature + p)
        decrement = -slope * step
        # Where the curvature is infinite a step says nothing of the distance.
        if decrement <= 1e-16 * (1.0 + abs(value)) and curvature < math.inf:
            return min(max(x + step, low), high), value - 0.5 * decrement, decrement
        x = x + step
        if not low < x < high:
            x = 0.5 * (low + high)
        if not low < x < high:
            return x, value, decrement
    return x, value, -1.0


@njit(cache=True, error_model="numpy")
def _bends_down(model, low, high, reference, p, known, c):
    """Return whether the objective bends down anywhere on [low, high], within one piece: by bounds of its curvature,
    so that nothing narrow is missed."""
    if model[LEAST_CURVATURE] != 0 and least_curvature(model, known, c) + p > 0.0:
        return False
    if model[BOUNDS] == 0:  # quadratic
        _, _, curvature = piece_at(model, reference, reference, known, c)
        return not curvature + p > 0.0
    boxes = np.empty((80, 2))
    boxes[0, 0] = low
    boxes[0, 1] = high
    held = 1
    seen = 0
    while held > 0:
        held -= 1
        seen += 1
        low = boxes[held, 0]
        high = boxes[held, 1]
        middle = 0.5 * (low + high)
        _, bounds = bounds_on(model, low, high, reference, known, c)
        if bounds[0] + p > 0.0 or not low < middle < high:
            continue
        _, _, curvature = piece_at(model, middle, reference, known, c)
        if not curvature + p > 0.0:
            return True
        # Where the least of the curvature is zero, halving has no end.
        if seen < 4000 and held + 2 <= boxes.shape[0]:
            held = halve(boxes, held, low, middle, high)
    return False


@njit(cache=True, error_model="numpy")
def _add_minima_of_piece(model, low, high, reference, w, p, known, c, flip, found, count):
    """Add the minima of one piece within (low, high) to the `count` rows of found; returns how many rows there are then
    and the decrement of the first descent (negative: not converged).

    flip 1: all of them. Intervals are halved until bounds say that the slope has one sign there, that the objective
    bends down, or that it bends up, so that there is one minimum at the most.
    """
    x, value, _, size = _descend(model, w, low, high, reference, w, p, known, c)
    if size >= 0.0:
        count = insert_minimum(found, count, (x,), value)
    if flip == 0 and size != -1.0:
        return count, size
    # The loss not being negative, the quadratic part of the minimum is at most the best value: (15.1).
    reach = math.sqrt(2.0 * abs(value) / p)
    if low < -x < high:
        # The mirror image is often another minimum, be it too high to be among those below.
        new_x, value, _, its = _descend(model, -x, low, high, reference, w, p, known, c)
        if its >= 0.0:
            count = insert_minimum(found, count, (new_x,), value)
    boxes = np.empty((80, 2))
    boxes[0, 0] = max(low, w - reach)
    boxes[0, 1] = min(high, w + reach)
    held = 1 if boxes[0, 0] < boxes[0, 1] else 0
    seen = 0
    while held > 0:
        if seen >= 4000 or held + 2 > boxes.shape[0]:
            return count, -1.0
        held -= 1
        seen += 1
        left = boxes[held, 0]
        right = boxes[held, 1]
        slopes, bends = bounds_on(model, left, right, reference, known, c)
        middle = 0.5 * (left + right)
        # The bounds of the slope directly, and by the mean value theorem from that in the middle.
        _, slope, _ = piece_at(model, middle, reference, known, c)
        pull = p * (middle - w)
        spread = 0.5 * (right - left) * max(abs(bends[0] + p), abs(bends[1] + p)) + 1e-14 * (abs(slope) + abs(pull))
        lowest = max(slopes[0] + p * (left - w), slope + pull - spread)
        highest = min(slopes[1] + p * (right - w), slope + pull + spread)
        if lowest > 0.0 or highest < 0.0 or bends[1] + p < 0.0:
            continue
        if bends[0] + p > 0.0 or right - left <= 1e-13 * (abs(left) + abs(right)) or not left < middle < right:
            x, value, its = _minimum_between(model, left, right, reference, w, p, known, c)
            if its >= 0.0:
                count = insert_minimum(found, count, (x,), value)
                size = max(size, its)
            continue
        held = halve(boxes, held, left, middle, right)
    return count, size


@njit(cache=True, error_model="numpy")
def _minima(model, w, p, known, c, flip, edges, found):
    """Fill found (most, 2) with local minima (x, value) of the objective, lowest first: of the pieces and at the edges.

    flip 0 looks once in every piece, 1 all over the interval that must hold the global minimum.
    Returns how many there are, and the largest decrement before a last step (negative: nothing was found).
    """
    count = np.int64(0)  # as it returns from calls: Numba compiles once more for a number that is written
    worst = 0.0
    pieces = edges_of(model, known, c, edges)
    lowest = math.inf
    at_lowest = w
    if model[LEAST_CURVATURE] != 0 and least_curvature(model, known, c) + p > 0.0:
        flip = 0  # the objective bends up everywhere: there is no second minimum in any piece
    for piece in range(pieces):
        low = edges[piece]
        high = edges[piece + 1]
        reference = inside(low, high)
        if model[BOUNDS] != 0:
            count, size = _add_minima_of_piece(model, low, high, reference, w, p, known, c, flip, found, count)
            worst = max(worst, size)
        else:
            # The piece is at most quadratic: one step of Newton's method from anywhere leads to its minimum.
            _, slope, curvature = piece_at(model, reference, reference, known, c)
            if curvature + p > 0.0:
                x = reference - (slope + p * (reference - w)) / (curvature + p)
                if low < x < high:
                    loss, _, _ = piece_at(model, x, reference, known, c)
                    count = insert_minimum(found, count, (x,), loss + 0.5 * p * (x - w) ** 2)
        if piece + 1 < pieces:
            left, left_slope, _, right, right_slope, _ = _one_sided_values(model, edges, piece, known, c)
            pull = p * (high - w)
            value = min(left, right) + 0.5 * pull * (high - w)
            if is_minimum(left, left_slope + pull, right, right_slope + pull):
                count = insert_minimum(found, count, (high,), value)
            if value < lowest:
                lowest = value
                at_lowest = high
    if count == 0 and lowest < math.inf:
        # Rounding may take a minimum that comes close to an edge out of both its pieces.
        count = insert_minimum(found, count, (at_lowest,), lowest)
    return count, worst if count > 0 else -1.0


@njit(cache=True, error_model="numpy")
def proximal(model, w, p, known, c, flip, edges, found):
    """Return the lowest minimum of the objective.

    flip as for `_minima`. Returns x, value, gap to the next lowest minimum found (nan without one), 1 or 2 for one or
    more minima found (0: the descents did not converge), and the largest decrement before a last step.
    """
    count, size = _minima(model, w, p, known, c, flip, edges, found)
    if count == 0:
        return w, math.nan, math.nan, 0, -1.0
    gap = found[1, 1] - found[0, 1] if count > 1 else math.nan
    return found[0, 0], found[0, 1], gap, min(count, 2), size


@njit(cache=True, error_model="numpy")
def all_minima(model, w, p, known, c, found):
    """Return how many local minima there are, which are rows (x, value) of found, lowest first."""
    return _minima(model, w, p, known, c, np.int64(1), np.empty(model[PLACES] + 2), found)[0]


@njit(cache=True, error_model="numpy")
def is_corner(model, x, known, c, edges):
    """Return whether x is an edge at which the loss or its slope jumps, or is infinitely curved, so that proximal
    points stay there."""
    return _is_corner_at(model, x, known, c, edges, edges_of(model, known, c, edges))


@njit(cache=True, error_model="numpy")
def _is_corner_at(model, x, known, c, edges, pieces):
    """Return `is_corner` where the edges are known."""
    for piece in range(pieces - 1):
        if edges[piece + 1] == x:
            left, left_slope, left_bend, right, right_slope, right_bend = _one_sided_values(
                model, edges, piece, known, c
            )
            if not abs(left_bend) + abs(right_bend) < math.inf:
                return True
            return differ(left, right) or differ(left_slope, right_slope)
    return False


@njit(cache=True, error_model="numpy")
def _has_jump_between(model, low, high, p, known, c, edges, pieces):
    """Return whether some x between two proximal points is none: there the loss jumps, or its slope falls or bends
    down too far."""
    for piece in range(pieces):
        start = max(low, edges[piece])
        end = min(high, edges[piece + 1])
        if start > end:
            continue
        if piece > 0 and low <= edges[piece] <= high:
            left, left_slope, _, right, right_slope, _ = _one_sided_values(model, edges, piece - 1, known, c)
            falls = differ(left_slope, right_slope) and left_slope > right_slope
            # A proximal point at the edge has the lower value: from there nothing leaps into that side.
            leaves = (left < right or low < edges[piece]) and (left > right or edges[piece] < high)
            if (leaves and differ(left, right)) or (falls and low < edges[piece] < high):
                return True
        reference = inside(edges[piece], edges[piece + 1])
        if start < end and _bends_down(model, start, end, reference, p, known, c):
            return True
    return False


@njit(cache=True, error_model="numpy")
def _add_breakpoints(model, low, high, p, known, c, cells, edges, found, cuts, count):
    """Add to the `count` places in cuts those in (low, high) of omega at which the proximal map jumps or bends.

    So are images of places on both sides of what is narrow in the loss, in distances that grow by a factor of four.
    At a jump two minima are equally low: where the objectives at the proximal points on its sides are equal, the
    proximal point is one of them; else the one found there splits the interval. Bends are where proximal points come
    to an edge and leave it.
    """
    pieces = edges_of(model, known, c, edges)
    stack = np.empty((64, 4))
    narrow = narrow_places(model, known, c) if model[NARROW] != 0 else np.empty(0)
    everywhere = np.int64(1)  # Numba compiles once more for a number that is written into a call
    _minima(model, low, p, known, c, everywhere, edges, found)
    before = low
    x_before = found[0, 0]
    for cell in range(cells):
        after = low + (high - low) * (cell + 1) / cells
        _minima(model, after, p, known, c, everywhere, edges, found)
        x_after = found[0, 0]
        depth = push(stack, 0, before, x_before, after, x_after)
        while depth > 0:
            depth -= 1
            a, x_a, b, x_b = stack[depth, 0], stack[depth, 1], stack[depth, 2], stack[depth, 3]
            if not x_a < x_b:
                continue
            if _has_jump_between(model, x_a, x_b, p, known, c, edges, pieces):
                at_a = _loss_from_below(model, x_a, known, c, edges, pieces)
                at_b = _loss_from_below(model, x_b, known, c, edges, pieces)
                middle = 0.5 * (x_a + x_b) + (at_b - at_a) / (p * (x_b - x_a))
                if a < middle < b:
                    _minima(model, middle, p, known, c, everywhere, edges, found)
                    equal = at_a + 0.5 * p * (x_a - middle) ** 2
                    lower = found[0, 1] < equal - 1e-15 * (1.0 + abs(equal)) and x_a < found[0, 0] < x_b
                    if lower and b - a > 1e-13 * (1.0 + abs(middle)) and depth + 2 <= stack.shape[0]:
                        depth = push(stack, depth, a, x_a, middle, found[0, 0])
                        depth = push(stack, depth, middle, found[0, 0], b, x_b)
                        continue
                count = insert_place(cuts, count, min(max(middle, a), b))
            else:
                for piece in range(pieces - 1):
                    place = edges[piece + 1]
                    if x_a <= place <= x_b:
                        _, left_slope, _, _, right_slope, _ = _one_sided_values(model, edges, piece, known, c)
                        for slope in (left_slope, right_slope):
                            image = place + slope / p
                            if a <= image <= b and count + 8 < len(cuts):
                                count = insert_place(cuts, count, image)
                if model[IMPLICIT_KINKS] != 0:
                    at_a, at_b = implicit_kinks(model, x_a, known, c), implicit_kinks(model, x_b, known, c)
                    for k in range(len(at_a)):
                        if at_a[k] * at_b[k] < 0.0 and count + 8 < len(cuts):
                            place = _implicit_kink_between(model, k, x_a, x_b, known, c)
                            _, slope, _ = _loss_at(model, place, known, c, edges)
                            count = insert_place(cuts, count, min(max(place + slope / p, a), b))
                for k in range(0, len(narrow), 2):
                    distance = narrow[k + 1]
                    while 1e-14 * (high - low) < distance < (high - low) / 64.0 and count + 8 < len(cuts):
                        for place in (narrow[k] - distance, narrow[k], narrow[k] + distance):
                            if x_a < place < x_b:
                                _, slope, _ = _loss_at(model, place, known, c, edges)
                                count = insert_place(cuts, count, min(max(place + slope / p, a), b))
                        distance *= 4.0
            if count + 4 > len(cuts):
                return count
        before = after
        x_before = x_after
    return count


@njit(cache=True, error_model="numpy")
def _implicit_kink_between(model, k, low, high, known, c):
    """Return where implicit kink k lies between two places at which it has different signs, by halving."""
    rises = implicit_kinks(model, high, known, c)[k] > 0.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if (implicit_kinks(model, middle, known, c)[k] > 0.0) == rises:
            high = middle
        else:
            low = middle
    return high


@njit(cache=True, error_model="numpy")
def _loss_at(model, x, known, c, edges):
    """Return the loss, its slope and its curvature at x, which lies in one of the pieces between the edges."""
    piece = piece_of(edges, x)
    return piece_at(model, x, inside(edges[piece], edges[piece + 1]), known, c)


@njit(cache=True, error_model="numpy")
def _loss_from_below(model, x, known, c, edges, pieces):
    """Return the loss at x, at an edge the lower of its values on the two sides."""
    lowest = math.inf
    for piece in range(pieces):
        if edges[piece] <= x <= edges[piece + 1]:
            value, _, _ = piece_at(model, x, inside(edges[piece], edges[piece + 1]), known, c)
            lowest = min(lowest, value)
    return lowest


@njit(cache=True, error_model="numpy")
def _squared_slope(model, x, p, known, c, edges, pieces):
    """Return (dg/domega)^2 at a proximal point, in units of p^2."""
    if _is_corner_at(model, x, known, c, edges, pieces):
        return 1.0
    _, _, curvature = _loss_at(model, x, known, c, edges)
    return (curvature / (curvature + p)) ** 2


@njit(cache=True, error_model="numpy")
def _proximal_between(model, w, low, high, p, known, c, edges, found):
    """Return the proximal point, which lies in [low, high] if the map neither jumps nor bends between two that are at
    its ends; else that of a search."""
    if low == high:
        return low
    if model[BOUNDS] != 0:
        piece = piece_of(edges, high)
        if edges[piece] <= low:
            x, _, size = _minimum_between(model, low, high, inside(edges[piece], edges[piece + 1]), w, p, known, c)
            if size >= 0.0:
                return x
    _minima(model, w, p, known, c, np.int64(1), edges, found)
    return found[0, 0]


@njit(cache=True, error_model="numpy")
def _highest(model, centre, spread, middle, half, sides, p, known, c, t, weights, last, squared, edges, found):
    """Return the highest coefficients of X on a panel, relative to X, and of (dg/domega)^2 where it is asked for, the
    largest over the values of the noise, and the sum of the averages of the latter."""
    tail = 0.0
    rough = 0.0
    mean = 0.0
    ends = np.empty(2)
    bends = np.empty(2)
    for choice in range(known.shape[0]):
        row = known[choice]
        pieces = edges_of(model, row, c, edges)
        ends[:] = 0.0
        bends[:] = 0.0
        largest = 0.0
        for k in range(len(t)):
            w = centre + spread * (middle + half * t[k])
            x = _proximal_between(model, w, sides[choice, 0], sides[choice, 1], p, row, c, edges, found)
            ends[0] += last[0, k] * x
            ends[1] += last[1, k] * x
            largest = max(largest, abs(x))
            if squared:
                square = _squared_slope(model, x, p, row, c, edges, pieces)
                bends[0] += last[0, k] * square
                bends[1] += last[1, k] * square
                mean += weights[k] * square
        tail = max(tail, max(abs(ends[0]), abs(ends[1])) / (largest + spread))
        rough = max(rough, max(abs(bends[0]), abs(bends[1])))
    return tail, rough, mean


@njit(cache=True, error_model="numpy")
def _centre_of(low, high):
    """Return the middle and half the length of a panel, and no less than its normal measure times sqrt(2 pi) / 2."""
    half = 0.5 * (high - low)
    nearest = min(max(0.0, low), high)
    return 0.5 * (low + high), half, half * math.exp(-0.5 * nearest * nearest)


@njit(cache=True, error_model="numpy")
def panels(model, known, centre, spread, steep, p, c, cells, t, weights, last, tolerance, squares, reach, longest):
    """Return nodes for omega ~ N(centre, spread^2) between the places at which the proximal map jumps or bends.

    Gauss-Legendre on panels, halved until X is a polynomial there: until what `last` (2, n) makes of it, its two
    highest coefficients, is below a tolerance, by the measure of the panel; and so is (dg/domega)^2, relative to its
    average.

    Args:
        known: features (N, values of the noise, FEATURES); centre, spread: (N,); steep: (K,) further places to split
            at, in units of spread from the centre.
        cells: of a line, at whose ends proximal points are looked at first; t, weights: Gauss-Legendre on [-1, 1];
        tolerance: of X; squares: of (dg/domega)^2, infinite where it is not asked for.
        reach: of a line, longest (N,): of panels, in units of spread.

    Returns:
        number of the row, z = (omega - centre) / spread and weight of every node.
    """
    edges = np.empty(model[PLACES] + 2)
    found = np.empty((2 * model[PLACES] + 8, 2))
    cuts = np.empty(512)
    everywhere = np.int64(1)
    order = len(t)
    most = 1000 * order  # nodes of a line, beyond which rounding of X is taken for what bends it
    size = 64 * order
    row = np.empty(size, np.int64)
    place = np.empty(size)
    weight = np.empty(size)
    total = 0
    stack = np.empty((256, 2))
    sides = np.empty((cuts.shape[0], known.shape[1], 2))
    starts = np.empty((cuts.shape[0], 3))
    for n in range(len(centre)):
        first = total
        average = 0.0  # of the squares, on panels that are done
        cuts[0] = centre[n] - reach * spread[n]
        high = centre[n] + reach * spread[n]
        count = np.int64(1)
        for choice in range(known.shape[1]):
            count = _add_breakpoints(model, cuts[0], high, p, known[n, choice], c, cells, edges, found, cuts, count)
        for k in range(len(steep)):
            if abs(steep[k]) < reach and count + 4 < len(cuts):
                count = insert_place(cuts, count, centre[n] + steep[k] * spread[n])
        cuts[count] = high
        panel_count = 0  # first panels, each with the number of the cut that it begins after
        for cut in range(count):
            low = (cuts[cut] - centre[n]) / spread[n]
            length = (cuts[cut + 1] - centre[n]) / spread[n] - low
            if not length > 1e-14 * reach:
                continue
            for choice in range(known.shape[1]):
                for end in range(2):
                    within = low + length * (1e-9 if end == 0 else 1.0 - 1e-9)
                    _minima(model, centre[n] + spread[n] * within, p, known[n, choice], c, everywhere, edges, found)
                    sides[cut, choice, end] = found[0, 0]
            parts = math.ceil(min(length / longest[n], most / order))
            while panel_count + parts > starts.shape[0]:
                starts = np.concatenate((starts, np.empty_like(starts)))
            for part in range(parts):
                starts[panel_count, 0] = low + length * part / parts
                starts[panel_count, 1] = low + length * (part + 1) / parts
                starts[panel_count, 2] = cut
                panel_count += 1
        # In tails where the slope is that of rounding, squares are compared with what they are elsewhere.
        whole = 0.0
        if squares < math.inf:
            for panel in range(panel_count):
                middle, half, measure = _centre_of(starts[panel, 0], starts[panel, 1])
                _, _, mean = _highest(
                    model, centre[n], spread[n], middle, half, sides[int(starts[panel, 2])], p, known[n], c,
                    t, weights, last, True, edges, found,
                )  # fmt: skip
                whole += mean * measure
        for panel in range(panel_count):
            stack[0] = starts[panel, :2]
            depth = 1
            while depth > 0:
                depth -= 1
                middle, half, measure = _centre_of(stack[depth, 0], stack[depth, 1])
                tail, rough, mean = _highest(
                    model, centre[n], spread[n], middle, half, sides[int(starts[panel, 2])], p, known[n], c,
                    t, weights, last, squares < math.inf, edges, found,
                )  # fmt: skip
                done = not tail * measure > tolerance
                if squares < math.inf and half >= 1e-13 * reach:
                    least = max(average + mean * measure, _LEAST_SHARE * whole)
                    done = done and not rough * measure > squares * least
                if not done and total - first < most and depth + 2 <= stack.shape[0]:
                    high_end = stack[depth, 1]
                    stack[depth, 1] = middle
                    stack[depth + 1, 0] = middle
                    stack[depth + 1, 1] = high_end
                    depth += 2
                    continue
                average += mean * measure
                if total + order > size:
                    size *= 2
                    row, place, weight = longer(row, size), longer(place, size), longer(weight, size)
                for k in range(order):
                    z = middle + half * t[k]
                    row[total] = n
                    place[total] = z
                    weight[total] = half * weights[k] * math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
                    total += 1
    return row[:total], place[:total], weight[:total]
