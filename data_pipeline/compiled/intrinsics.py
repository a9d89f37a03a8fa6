"""Provide processor instructions that numba lacks, and a copy that allocates nothing, to compiled code."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from data_pipeline.compiled.jit import inlined


@intrinsic
def _trailing_zeros(_context, _word):
    def generate(_target, builder, _signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@intrinsic
def _load_word(_context, data, _position):
    def generate(target, builder, signature, arguments):
        array = target.make_array(signature.args[0])(target, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        word = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(data, types.uint64), generate


@intrinsic
def _high_product(_context, _a, _b):
    def generate(_target, builder, _signature, arguments):
        wide = ir.IntType(128)
        a, b = (builder.zext(argument, wide) for argument in arguments)
        high = builder.lshr(builder.mul(a, b), ir.Constant(wide, 64))
        return builder.trunc(high, ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


trailing_zeros: Any = _trailing_zeros
"""Number of zeros below the lowest set bit of a uint64; 64 if none is set."""
load_word: Any = _load_word
"""load_word(data, position): the eight bytes of the contiguous uint8 array from `position` on as a uint64. They must
lie within it: nothing is checked."""


_product: Any = _high_product


@inlined
def multiply_high(a, b):
    """Return the upper 64 bits of the 128-bit product of two uint64."""
    return _product(a, b)


@inlined
def copy_run(out, at, data, first, last):
    """Copy data[first:last] to out[at:]. A slice assignment would check for overlap, and allocate."""
    # unsigned: numba then checks no index for being negative, and the loop is vectorized
    to, source = np.uint64(at), np.uint64(first)
    for i in range(last - first):
        out[to + np.uint64(i)] = data[source + np.uint64(i)]
