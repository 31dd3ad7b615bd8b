"""Work arrays of compiled functions on the stack: no allocation, on the CPU and on a CUDA device alike.

Sizes are numbers that are known when a function is compiled. An array ends with the function that asks for it, so it
must not be returned, and one in a loop is the same array at every turn.
"""

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import lower_builtin, type_callable
from numba.np.arrayobj import make_array, populate_array


def work_array(shape):
    """Return an array of doubles whose entries are not set.

    Args:
        shape: size or tuple of sizes, constants of the calling module.
    """
    return np.empty(shape)


def index_array(shape):
    """Return an array of integers whose entries are not set.

    Args:
        shape: size or tuple of sizes, constants of the calling module.
    """
    return np.empty(shape, np.int64)


def array_of(values):
    """Return an array of the doubles of a tuple."""
    return np.array(values)


def _constant_sizes(shape):
    """Return the sizes of an array as a tuple of numbers, None unless all are known when the caller is compiled."""
    sizes = tuple(shape) if isinstance(shape, types.BaseTuple) else (shape,)  # type: ignore[arg-type]
    if not all(isinstance(size, types.IntegerLiteral) for size in sizes):
        return None
    return tuple(size.literal_value for size in sizes)


def _allocate_on_stack(context, builder, kind, sizes):
    """Generate LLVM code that allocates an array in the frame of the calling function; return its LLVM structure."""
    element = context.get_data_type(kind.dtype)
    data = cgutils.alloca_once(builder, element, size=context.get_constant(types.intp, int(np.prod(sizes))))
    width = context.get_abi_sizeof(element)
    strides = [width * int(np.prod(sizes[axis + 1 :])) for axis in range(len(sizes))]
    array = make_array(kind)(context, builder)
    shape, steps = ([context.get_constant(types.intp, number) for number in each] for each in (sizes, strides))
    item = context.get_constant(types.intp, width)
    populate_array(array, data=data, shape=shape, strides=steps, itemsize=item, meminfo=None)
    return array


def _compile_on_stack(function, dtype):
    @type_callable(function)
    def type_of_array(context):
        def _of_shape(shape):
            sizes = _constant_sizes(shape)
            return None if sizes is None else types.Array(dtype, len(sizes), "C")

        return _of_shape

    @lower_builtin(function, types.Any)
    def _build_llvm_array(context, builder, signature, arguments):
        sizes = _constant_sizes(signature.args[0])
        return _allocate_on_stack(context, builder, signature.return_type, sizes)._getvalue()


_compile_on_stack(work_array, types.float64)
_compile_on_stack(index_array, types.int64)


@type_callable(array_of)
def _type_of_array_of(context):
    def _of_tuple(values):
        return types.Array(types.float64, 1, "C") if isinstance(values, types.BaseTuple) else None

    return _of_tuple


@lower_builtin(array_of, types.BaseTuple)
def _build_llvm_array_of(context, builder, signature, arguments):
    entries = cgutils.unpack_tuple(builder, arguments[0])
    array = _allocate_on_stack(context, builder, signature.return_type, (len(entries),))
    for place, (entry, kind) in enumerate(zip(entries, signature.args[0], strict=True)):
        value = context.cast(builder, entry, kind, types.float64)
        builder.store(value, cgutils.gep(builder, array.data, place))
    return array._getvalue()
