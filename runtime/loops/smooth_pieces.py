"""Losses of one field: smooth pieces, minima of the Moreau objective, panels between kinks of the proximal map.

See docs/theory.md section 11. `bind_loss_functions` takes the addresses of the functions of a generated solver:
functions that call them by address are compiled once on a machine, not once per solver.
"""

import math

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

_SAME = 1e-10  # relative difference below which values count as equal
_ROUNDING_AT_CUSP = 1e-13  # relative rounding error of (dg/domega)^2 times det^(3/2), det = 1 + V loss''
_LEAST_SHARE = 1e-3  # of a first estimate of the average square, below which squares need not be resolved
_NUMBER = types.float64
_ARRAY = types.Array(types.float64, 1, "C")
_AT = types.CPointer(types.float64)  # an array as argument of a function of a model, which knows its size
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
# Entries of a model: 0 for functions that its loss does not have.
BOUNDS, LEAST_CURVATURE, NARROW, IMPLICIT_KINKS, PLACES = 2, 3, 4, 5, 6


@intrinsic
def bind_loss_functions(typing, piece, edges, bounds, least_curvature, narrow, implicit_kinks, places):
    """Return the addresses of the compiled functions of a loss (0 for None), followed by its number of piece edges.

    Args:
        typing: typing context, which Numba passes.
        piece: function called by `loss_piece_at`.
        edges: function called by `fill_piece_edges`.
        bounds: function called by `derivative_bounds_on`, or None.
        least_curvature: function called by `least_curvature`, or None.
        narrow: function called by `positions_of_rapid_variation`, or None.
        implicit_kinks: function called by `implicit_kinks`, or None.
        places: number of edges between the smooth pieces of the loss.
    """
    given = (piece, edges, bounds, least_curvature, narrow, implicit_kinks)
    for (name, signature), function in zip(_FUNCTIONS, given, strict=True):
        found = None if function == types.none else function.get_call_type(typing, signature.args, {})
        if found is not None and found.return_type != signature.return_type:
            raise TypingError(f"the loss's function {name} returns {found.return_type}, not {signature.return_type}")

    def build_llvm_addresses(context, builder, _, arguments):
        """Generate LLVM code for the addresses of all functions and return the tuple of their LLVM values.

        Args:
            context: code generation context, which Numba passes.
            builder: LLVM builder that receives the instructions.
            arguments: LLVM values of the arguments.
        """
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

    return _MODEL(*given, types.intp), build_llvm_addresses


def _call_by_address(entry):
    """Return signature and code generator by which Numba calls a function of the loss by its address.

    `entry` is the index of the function in `_FUNCTIONS`.
    """
    signature = _FUNCTIONS[entry][1]
    array = make_array(_ARRAY)

    def build_llvm_call(context, builder, _, arguments):
        """Generate LLVM code that calls the function at its address and return the LLVM value of the result.

        Args:
            context: code generation context, which Numba passes.
            builder: LLVM builder that receives the instructions.
            arguments: LLVM values of the arguments.
        """
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

    return signature.return_type(_MODEL, *(_ARRAY if kind == _AT else kind for kind in signature.args)), build_llvm_call


@intrinsic
def loss_piece_at(typing, model, x, reference, known, c):
    """Return the loss at x and its first two derivatives, by the formula of the piece with the reference point.

    Args:
        typing: typing context, which Numba passes.
        model: addresses of the loss's compiled functions, see `bind_loss_functions`.
        x: the field X at which the loss is evaluated.
        reference: a point inside the smooth piece of the loss.
        known: features: numbers by which the loss depends on teacher fields and noise.
        c: the channel's constants: parameters, labels, and overlaps that the loss contains.
    """
    return _call_by_address(0)


@intrinsic
def fill_piece_edges(typing, model, known, c, out):
    """Fill the edges of the smooth pieces of the loss, ascending from -inf to inf; return the number of pieces.

    Args:
        typing: typing context, which Numba passes.
        model: addresses of the loss's compiled functions, see `bind_loss_functions`.
        known: features: numbers by which the loss depends on teacher fields and noise.
        c: the channel's constants: parameters, labels, and overlaps that the loss contains.
        out: filled with the edges, in ascending order.
    """
    return _call_by_address(1)


@intrinsic
def derivative_bounds_on(typing, model, low, high, reference, known, c):
    """Return bounds (lower, upper) of the first and the second derivative of the loss on an interval.

    Args:
        typing: typing context, which Numba passes.
        model: addresses of the loss's compiled functions, see `bind_loss_functions`.
        low: lower end.
        high: upper end.
        reference: a point inside the smooth piece of the loss.
        known: features: numbers by which the loss depends on teacher fields and noise.
        c: the channel's constants: parameters, labels, and overlaps that the loss contains.
    """
    return _call_by_address(BOUNDS)


@intrinsic
def least_curvature(typing, model, known, c):
    """Return a lower bound on the second derivative of the loss with respect to its field.

    Args:
        typing: typing context, which Numba passes.
        model: addresses of the loss's compiled functions, see `bind_loss_functions`.
        known: features: numbers by which the loss depends on teacher fields and noise.
        c: the channel's constants: parameters, labels, and overlaps that the loss contains.
    """
    return _call_by_address(LEAST_CURVATURE)


@intrinsic
def positions_of_rapid_variation(typing, model, known, c):
    """Return the fields near which the loss may vary rapidly, each followed by the width of that region.

    Args:
        typing: typing context, which Numba passes.
        model: addresses of the loss's compiled functions, see `bind_loss_functions`.
        known: features: numbers by which the loss depends on teacher fields and noise.
        c: the channel's constants: parameters, labels, and overlaps that the loss contains.
    """
    return _call_by_address(NARROW)


@intrinsic
def implicit_kinks(typing, model, x, known, c):
    """Return the values at x of the functions whose zeros are possible kinks of the loss inside a piece.

    Args:
        typing: typing context, which Numba passes.
        model: addresses of the loss's compiled functions, see `bind_loss_functions`.
        x: the field X at which the loss is evaluated.
        known: features: numbers by which the loss depends on teacher fields and noise.
        c: the channel's constants: parameters, labels, and overlaps that the loss contains.
    """
    return _call_by_address(IMPLICIT_KINKS)


@njit(cache=True, error_model="numpy")
def insert_minimum(found, count, x, value):
    """Insert a minimum into a list sorted by value, unless the list contains it; return the new length.

    Args:
        found: list of minima, one row (x, value) each; the highest are dropped if they do not fit.
        count: number of minima in the list.
        x: position of the new minimum, a tuple.
        value: function value at the new minimum.
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
            # Keep the lower one.
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
def insert_edge(edges, count, place):
    """Insert a position into an ascending list of edges and return the new length of the list.

    A position that is in the list already, below its first edge, infinite or nan is not inserted.

    Args:
        edges: edges, ascending.
        count: number of edges.
        place: position to insert.
    """
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
def inner_point_of_interval(low, high):
    """Return a point inside an interval, which may be unbounded.

    Args:
        low: lower end, may be -inf.
        high: upper end, may be inf.
    """
    if low == -math.inf:
        return 0.0 if high == math.inf else high - 1.0
    return low + 1.0 if high == math.inf else 0.5 * (low + high)


@njit(cache=True, error_model="numpy")
def number_of_piece_containing(edges, x):
    """Return the number of the smooth piece that contains x; at an edge, of the piece to its left.

    Args:
        edges: edges of the pieces, ascending; the last is inf.
        x: the field X at which the loss is evaluated.
    """
    piece = 0
    while edges[piece + 1] < x:
        piece += 1
    return piece


@njit(cache=True, error_model="numpy")
def differ_beyond_rounding(one, other):
    """Return whether two numbers differ by more than rounding errors.

    Args:
        one: first number.
        other: second number.
    """
    return abs(one - other) > _SAME * (1.0 + abs(one) + abs(other))


@njit(cache=True, error_model="numpy")
def is_minimum_at_edge(left, left_slope, right, right_slope):
    """Return whether a function of one variable has a local minimum at a point where it may have a kink or a jump.

    Args:
        left: left limit of the function.
        left_slope: left derivative.
        right: right limit of the function.
        right_slope: right derivative.
    """
    falls = left_slope <= 0.0
    rises = right_slope >= 0.0
    if differ_beyond_rounding(left, right):
        # At a jump only the slope on the lower side matters.
        return rises if left > right else falls
    return falls and rises


@njit(cache=True, error_model="numpy")
def push_interval_onto_stack(stack, depth, a, x_a, b, x_b):
    """Push an interval and the proximal points at its ends on a stack; return the number of intervals on it.

    Args:
        stack: stack with rows (a, x_a, b, x_b).
        depth: number of intervals on the stack.
        a: lower end.
        x_a: proximal point at the lower end.
        b: upper end.
        x_b: proximal point at the upper end.
    """
    stack[depth, 0] = a
    stack[depth, 1] = x_a
    stack[depth, 2] = b
    stack[depth, 3] = x_b
    return depth + 1


@njit(cache=True, error_model="numpy")
def push_interval_halves_onto_stack(boxes, held, low, middle, high):
    """Push both halves of an interval on a stack, the lower one on top; return the number of intervals on it.

    Args:
        boxes: stack with rows (low, high).
        held: number of intervals on the stack.
        low: lower end.
        middle: middle of the interval.
        high: upper end.
    """
    boxes[held, 0] = middle
    boxes[held, 1] = high
    boxes[held + 1, 0] = low
    boxes[held + 1, 1] = middle
    return held + 2


@njit(cache=True, error_model="numpy")
def extend_array(values, size):
    """Return an array of a larger size whose first entries are the given values; the rest is uninitialised.

    Args:
        values: the given values.
        size: number of entries of the new array.
    """
    out = np.empty(size, values.dtype)
    for n in range(len(values)):
        out[n] = values[n]
    return out


@njit(cache=True, error_model="numpy")
def _one_sided_losses_at_edge(model, edges, piece, known, c):
    """Return the limits at an edge of the loss and its first two derivatives, from the left, then from the right."""
    end = edges[piece + 1]
    before, before_slope, before_curvature = loss_piece_at(
        model, end, inner_point_of_interval(edges[piece], end), known, c
    )
    after, after_slope, after_curvature = loss_piece_at(
        model, end, inner_point_of_interval(end, edges[piece + 2]), known, c
    )
    return before, before_slope, before_curvature, after, after_slope, after_curvature


@njit(cache=True, error_model="numpy")
def _minimise_within_piece(model, x, low, high, reference, w, p, known, c):
    """Minimise loss(x) + p (x - w)^2 / 2 within one smooth piece, on [low, high], by damped Newton steps.

    Return the minimiser, the minimum, the curvature there and the Newton decrement before the last step (-1: not
    converged, -2: the descent ends at an edge).
    """
    floor = 0.1 * p
    tiny = 1e-4 * p
    x = min(max(x, low), high)
    loss, slope, curvature = loss_piece_at(model, x, reference, known, c)
    for _ in range(100):
        value = loss + 0.5 * p * (x - w) ** 2
        if not curvature < math.inf:
            break  # at an edge, where the Newton step vanishes
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
        # Backtracking to the Armijo condition with factor 1e-4, up to rounding.
        for _ in range(40):
            new_x = min(max(x + step, low), high)
            loss, new_slope, curvature = loss_piece_at(model, new_x, reference, known, c)
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
def _minimum_in_convex_interval(model, low, high, reference, w, p, known, c):
    """Return the minimum of loss(x) + p (x - w)^2 / 2 where it is convex, by Newton steps with bisection.

    Return the minimiser, the minimum and the Newton decrement before the last step (-2: no minimum inside).
    """
    _, slope, _ = loss_piece_at(model, low, reference, known, c)
    _, rise, _ = loss_piece_at(model, high, reference, known, c)
    slope += p * (low - w)
    rise += p * (high - w)
    if slope > 0.0 or rise < 0.0:
        return low, math.nan, -2.0
    x = low - slope * (high - low) / (rise - slope)
    if not low < x < high:
        x = 0.5 * (low + high)
    for _ in range(200):
        loss, slope, curvature = loss_piece_at(model, x, reference, known, c)
        value = loss + 0.5 * p * (x - w) ** 2
        slope += p * (x - w)
        if slope > 0.0:
            high = x
        else:
            low = x
        step = -slope / (curvature + p)
        decrement = -slope * step
        # With infinite curvature the step does not measure the distance.
        if decrement <= 1e-16 * (1.0 + abs(value)) and curvature < math.inf:
            return min(max(x + step, low), high), value - 0.5 * decrement, decrement
        x = x + step
        if not low < x < high:
            x = 0.5 * (low + high)
        if not low < x < high:
            return x, value, decrement
    return x, value, -1.0


@njit(cache=True, error_model="numpy")
def _is_concave_anywhere(model, low, high, reference, p, known, c):
    """Return whether loss(x) + p (x - w)^2 / 2 is concave anywhere on an interval, by bounds of its curvature."""
    if model[LEAST_CURVATURE] != 0 and least_curvature(model, known, c) + p > 0.0:
        return False
    if model[BOUNDS] == 0:  # quadratic
        _, _, curvature = loss_piece_at(model, reference, reference, known, c)
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
        _, bounds = derivative_bounds_on(model, low, high, reference, known, c)
        if bounds[0] + p > 0.0 or not low < middle < high:
            continue
        _, _, curvature = loss_piece_at(model, middle, reference, known, c)
        if not curvature + p > 0.0:
            return True
        # If the smallest curvature is zero, bisection would not end.
        if seen < 4000 and held + 2 <= boxes.shape[0]:
            held = push_interval_halves_onto_stack(boxes, held, low, middle, high)
    return False


@njit(cache=True, error_model="numpy")
def _add_minima_of_piece(model, low, high, reference, w, p, known, c, flip, found, count):
    """Add the minima of loss(x) + p (x - w)^2 / 2 in one smooth piece to a list.

    With flip = 0 one descent is made; with flip = 1 all minima are found, by bisection until bounds show that the
    derivative has one sign or that the function is concave or convex. Return the new length of the list and the Newton
    decrement of the first descent, negative if it did not converge.
    """
    x, value, _, size = _minimise_within_piece(model, w, low, high, reference, w, p, known, c)
    if size >= 0.0:
        count = insert_minimum(found, count, (x,), value)
    if flip == 0 and size != -1.0:
        return count, size
    # The loss not being negative, the quadratic part of the minimum is at most the best value: (15.1).
    reach = math.sqrt(2.0 * abs(value) / p)
    if low < -x < high:
        # The mirror image is often another minimum, perhaps too high to be found by the search below.
        new_x, value, _, its = _minimise_within_piece(model, -x, low, high, reference, w, p, known, c)
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
        slopes, bends = derivative_bounds_on(model, left, right, reference, known, c)
        middle = 0.5 * (left + right)
        # The bounds of the slope directly, and by the mean value theorem from that in the middle.
        _, slope, _ = loss_piece_at(model, middle, reference, known, c)
        pull = p * (middle - w)
        spread = 0.5 * (right - left) * max(abs(bends[0] + p), abs(bends[1] + p)) + 1e-14 * (abs(slope) + abs(pull))
        lowest = max(slopes[0] + p * (left - w), slope + pull - spread)
        highest = min(slopes[1] + p * (right - w), slope + pull + spread)
        if lowest > 0.0 or highest < 0.0 or bends[1] + p < 0.0:
            continue
        if bends[0] + p > 0.0 or right - left <= 1e-13 * (abs(left) + abs(right)) or not left < middle < right:
            x, value, its = _minimum_in_convex_interval(model, left, right, reference, w, p, known, c)
            if its >= 0.0:
                count = insert_minimum(found, count, (x,), value)
                size = max(size, its)
            continue
        held = push_interval_halves_onto_stack(boxes, held, left, middle, right)
    return count, size


@njit(cache=True, error_model="numpy")
def _moreau_minima(model, w, p, known, c, flip, edges, found):
    """Fill `found` with the local minima (x, value) of loss(x) + p (x - w)^2 / 2, lowest first.

    With flip = 0 one descent per smooth piece is made; flip = 1 searches the whole interval that must contain the
    global minimum. Return the number of minima and the largest Newton decrement before a last step (negative if none).
    """
    count = np.int64(0)  # typed, as a literal would make Numba compile again
    worst = 0.0
    pieces = fill_piece_edges(model, known, c, edges)
    lowest = math.inf
    at_lowest = w
    if model[LEAST_CURVATURE] != 0 and least_curvature(model, known, c) + p > 0.0:
        flip = 0  # the objective is convex in every piece, which then has at most one minimum
    for piece in range(pieces):
        low = edges[piece]
        high = edges[piece + 1]
        reference = inner_point_of_interval(low, high)
        if model[BOUNDS] != 0:
            count, size = _add_minima_of_piece(model, low, high, reference, w, p, known, c, flip, found, count)
            worst = max(worst, size)
        else:
            # The piece is at most quadratic: one Newton step leads to its minimum.
            _, slope, curvature = loss_piece_at(model, reference, reference, known, c)
            if curvature + p > 0.0:
                x = reference - (slope + p * (reference - w)) / (curvature + p)
                if low < x < high:
                    loss, _, _ = loss_piece_at(model, x, reference, known, c)
                    count = insert_minimum(found, count, (x,), loss + 0.5 * p * (x - w) ** 2)
        if piece + 1 < pieces:
            left, left_slope, _, right, right_slope, _ = _one_sided_losses_at_edge(model, edges, piece, known, c)
            pull = p * (high - w)
            value = min(left, right) + 0.5 * pull * (high - w)
            if is_minimum_at_edge(left, left_slope + pull, right, right_slope + pull):
                count = insert_minimum(found, count, (high,), value)
            if value < lowest:
                lowest = value
                at_lowest = high
    if count == 0 and lowest < math.inf:
        # By rounding, a minimum close to an edge may lie in neither of its pieces.
        count = insert_minimum(found, count, (at_lowest,), lowest)
    return count, worst if count > 0 else -1.0


@njit(cache=True, error_model="numpy")
def lowest_moreau_minimum(model, w, p, known, c, flip, edges, found):
    """Return the lowest minimum of the Moreau objective loss(x) + p (x - w)^2 / 2.

    Args:
        model: addresses of the loss's compiled functions, see `bind_loss_functions`.
        w: field omega.
        p: precision 1 / V.
        known: features: numbers by which the loss depends on teacher fields and noise.
        c: the channel's constants: parameters, labels, and overlaps that the loss contains.
        flip: 0 for one descent per piece, 1 for a search of the whole interval that contains the global minimum.
        edges: scratch array, at least as long as the number of edges plus 2.
        found: scratch array for rows (x, value).

    Returns:
        Minimiser, minimum, gap to the second lowest minimum (nan without one), number of minima found, at most 2 (0 if
        the descents did not converge), and the largest Newton decrement before a last step.
    """
    count, size = _moreau_minima(model, w, p, known, c, flip, edges, found)
    if count == 0:
        return w, math.nan, math.nan, 0, -1.0
    gap = found[1, 1] - found[0, 1] if count > 1 else math.nan
    return found[0, 0], found[0, 1], gap, min(count, 2), size


@njit(cache=True, error_model="numpy")
def all_moreau_minima(model, w, p, known, c, found):
    """Fill a list with all local minima of the Moreau objective loss(x) + p (x - w)^2 / 2 and return their number.

    Args:
        model: addresses of the loss's compiled functions, see `bind_loss_functions`.
        w: field omega.
        p: precision 1 / V.
        known: features: numbers by which the loss depends on teacher fields and noise.
        c: the channel's constants: parameters, labels, and overlaps that the loss contains.
        found: filled with rows (x, value), lowest first.
    """
    return _moreau_minima(model, w, p, known, c, np.int64(1), np.empty(model[PLACES] + 2), found)[0]


@njit(cache=True, error_model="numpy")
def is_corner(model, x, known, c, edges):
    """Return whether the loss or its derivative jumps at x, or its second derivative is infinite there.

    Args:
        model: addresses of the loss's compiled functions, see `bind_loss_functions`.
        x: the field X at which the loss is evaluated.
        known: features: numbers by which the loss depends on teacher fields and noise.
        c: the channel's constants: parameters, labels, and overlaps that the loss contains.
        edges: scratch array, at least as long as the number of edges plus 2.
    """
    return _is_corner_of_edges(model, x, known, c, edges, fill_piece_edges(model, known, c, edges))


@njit(cache=True, error_model="numpy")
def _is_corner_of_edges(model, x, known, c, edges, pieces):
    """Return whether the loss or its derivative jumps at x, one of the given edges of its smooth pieces."""
    for piece in range(pieces - 1):
        if edges[piece + 1] == x:
            left, left_slope, left_bend, right, right_slope, right_bend = _one_sided_losses_at_edge(
                model, edges, piece, known, c
            )
            if not abs(left_bend) + abs(right_bend) < math.inf:
                return True
            return differ_beyond_rounding(left, right) or differ_beyond_rounding(left_slope, right_slope)
    return False


@njit(cache=True, error_model="numpy")
def _has_proximal_jump_between(model, low, high, p, known, c, edges, pieces):
    """Return whether the proximal map jumps between two proximal points `low` and `high`.

    It jumps where the loss or its derivative jumps down, or where the minimised function is concave.
    """
    for piece in range(pieces):
        start = max(low, edges[piece])
        end = min(high, edges[piece + 1])
        if start > end:
            continue
        if piece > 0 and low <= edges[piece] <= high:
            left, left_slope, _, right, right_slope, _ = _one_sided_losses_at_edge(model, edges, piece - 1, known, c)
            falls = differ_beyond_rounding(left_slope, right_slope) and left_slope > right_slope
            # At an edge the proximal point has the lower value, and does not jump to that side.
            leaves = (left < right or low < edges[piece]) and (left > right or edges[piece] < high)
            if (leaves and differ_beyond_rounding(left, right)) or (falls and low < edges[piece] < high):
                return True
        reference = inner_point_of_interval(edges[piece], edges[piece + 1])
        if start < end and _is_concave_anywhere(model, start, end, reference, p, known, c):
            return True
    return False


@njit(cache=True, error_model="numpy")
def _add_proximal_breakpoints(model, low, high, p, known, c, cells, edges, found, cuts, count):
    """Add the fields omega at which the proximal map jumps or has a kink to a list; return the new length of the list.

    Next to rapid variations of the loss further omega are added, at distances that grow by factors of four. A jump is
    located by splitting intervals where the minima found at both ends are equally low. Kinks are where proximal points
    reach an edge of a smooth piece and where they leave it.
    """
    pieces = fill_piece_edges(model, known, c, edges)
    stack = np.empty((64, 4))
    narrow = positions_of_rapid_variation(model, known, c) if model[NARROW] != 0 else np.empty(0)
    everywhere = np.int64(1)  # typed, as a literal would make Numba compile again
    _moreau_minima(model, low, p, known, c, everywhere, edges, found)
    before = low
    x_before = found[0, 0]
    for cell in range(cells):
        after = low + (high - low) * (cell + 1) / cells
        _moreau_minima(model, after, p, known, c, everywhere, edges, found)
        x_after = found[0, 0]
        depth = push_interval_onto_stack(stack, 0, before, x_before, after, x_after)
        while depth > 0:
            depth -= 1
            a, x_a, b, x_b = stack[depth, 0], stack[depth, 1], stack[depth, 2], stack[depth, 3]
            if not x_a < x_b:
                continue
            if _has_proximal_jump_between(model, x_a, x_b, p, known, c, edges, pieces):
                at_a = _lower_one_sided_loss(model, x_a, known, c, edges, pieces)
                at_b = _lower_one_sided_loss(model, x_b, known, c, edges, pieces)
                middle = 0.5 * (x_a + x_b) + (at_b - at_a) / (p * (x_b - x_a))
                if a < middle < b:
                    _moreau_minima(model, middle, p, known, c, everywhere, edges, found)
                    equal = at_a + 0.5 * p * (x_a - middle) ** 2
                    lower = found[0, 1] < equal - 1e-15 * (1.0 + abs(equal)) and x_a < found[0, 0] < x_b
                    if lower and b - a > 1e-13 * (1.0 + abs(middle)) and depth + 2 <= stack.shape[0]:
                        depth = push_interval_onto_stack(stack, depth, a, x_a, middle, found[0, 0])
                        depth = push_interval_onto_stack(stack, depth, middle, found[0, 0], b, x_b)
                        continue
                count = insert_edge(cuts, count, min(max(middle, a), b))
            else:
                for piece in range(pieces - 1):
                    place = edges[piece + 1]
                    if x_a <= place <= x_b:
                        _, left_slope, _, _, right_slope, _ = _one_sided_losses_at_edge(model, edges, piece, known, c)
                        for slope in (left_slope, right_slope):
                            image = place + slope / p
                            if a <= image <= b and count + 8 < len(cuts):
                                count = insert_edge(cuts, count, image)
                if model[IMPLICIT_KINKS] != 0:
                    at_a, at_b = implicit_kinks(model, x_a, known, c), implicit_kinks(model, x_b, known, c)
                    for k in range(len(at_a)):
                        if at_a[k] * at_b[k] < 0.0 and count + 8 < len(cuts):
                            place = _locate_implicit_kink(model, k, x_a, x_b, known, c)
                            _, slope, _ = _loss_at(model, place, known, c, edges)
                            count = insert_edge(cuts, count, min(max(place + slope / p, a), b))
                for k in range(0, len(narrow), 2):
                    distance = narrow[k + 1]
                    while 1e-14 * (high - low) < distance < (high - low) / 64.0 and count + 8 < len(cuts):
                        for place in (narrow[k] - distance, narrow[k], narrow[k] + distance):
                            if x_a < place < x_b:
                                _, slope, _ = _loss_at(model, place, known, c, edges)
                                count = insert_edge(cuts, count, min(max(place + slope / p, a), b))
                        distance *= 4.0
            if count + 4 > len(cuts):
                return count
        before = after
        x_before = x_after
    return count


@njit(cache=True, error_model="numpy")
def _locate_implicit_kink(model, k, low, high, known, c):
    """Return the zero of switching function number k between two points where its signs differ, by bisection."""
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
    """Return the loss at x and its first two derivatives, given the edges of its smooth pieces."""
    piece = number_of_piece_containing(edges, x)
    return loss_piece_at(model, x, inner_point_of_interval(edges[piece], edges[piece + 1]), known, c)


@njit(cache=True, error_model="numpy")
def _lower_one_sided_loss(model, x, known, c, edges, pieces):
    """Return the loss at x; where it jumps, the lower of its two one-sided limits."""
    lowest = math.inf
    for piece in range(pieces):
        if edges[piece] <= x <= edges[piece + 1]:
            value, _, _ = loss_piece_at(model, x, inner_point_of_interval(edges[piece], edges[piece + 1]), known, c)
            lowest = min(lowest, value)
    return lowest


@njit(cache=True, error_model="numpy")
def _squared_field_derivative(model, x, p, known, c, edges, pieces):
    """Return (dg/domega)^2 / p^2 at a proximal point x, where g = p (x - omega) and p = 1 / V is the precision."""
    if _is_corner_of_edges(model, x, known, c, edges, pieces):
        return 1.0
    _, _, curvature = _loss_at(model, x, known, c, edges)
    return (curvature / (curvature + p)) ** 2


@njit(cache=True, error_model="numpy")
def _proximal_point_in_interval(model, w, low, high, p, known, c, edges, found):
    """Return the minimiser of loss(x) + p (x - w)^2 / 2 in [low, high]: by Newton steps in a piece, else a search."""
    if low == high:
        return low
    if model[BOUNDS] != 0:
        piece = number_of_piece_containing(edges, high)
        if edges[piece] <= low:
            x, _, size = _minimum_in_convex_interval(
                model, low, high, inner_point_of_interval(edges[piece], edges[piece + 1]), w, p, known, c
            )
            if size >= 0.0:
                return x
    _moreau_minima(model, w, p, known, c, np.int64(1), edges, found)
    return found[0, 0]


@njit(cache=True, error_model="numpy")
def _highest_legendre_coefficients(
    model, centre, spread, middle, half, sides, p, known, c, t, weights, last, squared, edges, found
):
    """Return the highest Legendre coefficients on a panel of the proximal point X and of (dg/domega)^2, and its mean.

    The coefficients of X are relative to its size. They are maxima over the values of the discrete noise, over which
    the mean of (dg/domega)^2 is summed.
    """
    tail = 0.0
    rough = 0.0
    mean = 0.0
    ends = np.empty(2)
    bends = np.empty(2)
    for choice in range(known.shape[0]):
        row = known[choice]
        pieces = fill_piece_edges(model, row, c, edges)
        ends[:] = 0.0
        bends[:] = 0.0
        largest = 0.0
        for k in range(len(t)):
            w = centre + spread * (middle + half * t[k])
            x = _proximal_point_in_interval(model, w, sides[choice, 0], sides[choice, 1], p, row, c, edges, found)
            ends[0] += last[0, k] * x
            ends[1] += last[1, k] * x
            largest = max(largest, abs(x))
            if squared:
                square = _squared_field_derivative(model, x, p, row, c, edges, pieces)
                bends[0] += last[0, k] * square
                bends[1] += last[1, k] * square
                mean += weights[k] * square
        tail = max(tail, max(abs(ends[0]), abs(ends[1])) / (largest + spread))
        rough = max(rough, max(abs(bends[0]), abs(bends[1])))
    return tail, rough, mean


@njit(cache=True, error_model="numpy")
def _panel_centre_and_measure(low, high):
    """Return middle and half length of a panel, and a bound on its normal measure times sqrt(pi / 2)."""
    half = 0.5 * (high - low)
    nearest = min(max(0.0, low), high)
    return 0.5 * (low + high), half, half * math.exp(-0.5 * nearest * nearest)


@njit(cache=True, error_model="numpy")
def proximal_panel_nodes(
    model, known, centre, spread, steep, p, c, cells, t, weights, last, tolerance, squares, reach, longest
):
    """Return quadrature nodes for omega ~ N(centre, spread^2) on panels between jumps and kinks of the proximal map.

    Gauss-Legendre panels are halved until the two highest Legendre coefficients of the proximal point X, times the
    measure of the panel, are below a tolerance, and likewise those of (dg/domega)^2, relative to its average.

    Args:
        model: addresses of the loss's compiled functions, see `bind_loss_functions`.
        known: features of the loss, (lines, values of the discrete noise, features).
        centre: mean of omega on every line.
        spread: standard deviation of omega on every line.
        steep: further positions to split at, in units of spread from the centre.
        p: precision 1 / V.
        c: the channel's constants: parameters, labels, and overlaps that the loss contains.
        cells: number of initial intervals of a line, at whose ends proximal points are computed first.
        t: Gauss-Legendre nodes on [-1, 1].
        weights: weights of these nodes.
        last: matrix from values at the nodes to the two highest Legendre coefficients, (2, nodes).
        tolerance: tolerance of the coefficients of X.
        squares: tolerance of the coefficients of (dg/domega)^2; infinite to skip them.
        reach: half length of a line, in units of spread.
        longest: largest length of a panel of every line, in units of spread.

    Returns:
        For every node: its line number, z = (omega - centre) / spread, and its weight.
    """
    edges = np.empty(model[PLACES] + 2)
    found = np.empty((2 * model[PLACES] + 8, 2))
    cuts = np.empty(512)
    everywhere = np.int64(1)
    order = len(t)
    most = 1000 * order  # nodes of a line beyond which deviations of X from polynomials are taken for rounding
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
        average = 0.0  # of the squares, on finished panels
        cuts[0] = centre[n] - reach * spread[n]
        high = centre[n] + reach * spread[n]
        count = np.int64(1)
        for choice in range(known.shape[1]):
            count = _add_proximal_breakpoints(
                model, cuts[0], high, p, known[n, choice], c, cells, edges, found, cuts, count
            )
        for k in range(len(steep)):
            if abs(steep[k]) < reach and count + 4 < len(cuts):
                count = insert_edge(cuts, count, centre[n] + steep[k] * spread[n])
        cuts[count] = high
        panel_count = 0  # initial panels, each with the number of the cut before it
        for cut in range(count):
            low = (cuts[cut] - centre[n]) / spread[n]
            length = (cuts[cut + 1] - centre[n]) / spread[n] - low
            if not length > 1e-14 * reach:
                continue
            for choice in range(known.shape[1]):
                for end in range(2):
                    within = low + length * (1e-9 if end == 0 else 1.0 - 1e-9)
                    _moreau_minima(
                        model, centre[n] + spread[n] * within, p, known[n, choice], c, everywhere, edges, found
                    )
                    sides[cut, choice, end] = found[0, 0]
            parts = math.ceil(min(length / longest[n], most / order))
            while panel_count + parts > starts.shape[0]:
                starts = np.concatenate((starts, np.empty_like(starts)))
            for part in range(parts):
                starts[panel_count, 0] = low + length * part / parts
                starts[panel_count, 1] = low + length * (part + 1) / parts
                starts[panel_count, 2] = cut
                panel_count += 1
        # In tails, where the slope is dominated by rounding, squares are compared with those elsewhere.
        whole = 0.0
        if squares < math.inf:
            for panel in range(panel_count):
                middle, half, measure = _panel_centre_and_measure(starts[panel, 0], starts[panel, 1])
                _, _, mean = _highest_legendre_coefficients(
                    model, centre[n], spread[n], middle, half, sides[int(starts[panel, 2])], p, known[n], c,
                    t, weights, last, True, edges, found,
                )  # fmt: skip
                whole += mean * measure
        for panel in range(panel_count):
            stack[0] = starts[panel, :2]
            depth = 1
            while depth > 0:
                depth -= 1
                middle, half, measure = _panel_centre_and_measure(stack[depth, 0], stack[depth, 1])
                tail, rough, mean = _highest_legendre_coefficients(
                    model, centre[n], spread[n], middle, half, sides[int(starts[panel, 2])], p, known[n], c,
                    t, weights, last, squares < math.inf, edges, found,
                )  # fmt: skip
                done = not tail * measure > tolerance
                if squares < math.inf and half >= 1e-13 * reach:
                    least = max(average + mean * measure, _LEAST_SHARE * whole)
                    # Next to a cusp dg/domega is 1 / (V det) with a relative rounding error of order det^(-3/2).
                    rounding = _ROUNDING_AT_CUSP * (1.0 + math.sqrt(mean) / p) ** 1.5
                    done = done and not (rough * measure > squares * least and rough > rounding * mean)
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
                    row, place, weight = extend_array(row, size), extend_array(place, size), extend_array(weight, size)
                for k in range(order):
                    z = middle + half * t[k]
                    row[total] = n
                    place[total] = z
                    weight[total] = half * weights[k] * math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
                    total += 1
    return row[:total], place[:total], weight[:total]
