"""Two instructions of the processor for code that `draws.jit` compiles; numba has no names for them."""

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic


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


trailing_zeros: Any = _trailing_zeros
"""How many zeros stand behind the lowest set bit of a uint64; 64 if none is set."""
load_word: Any = _load_word
"""load_word(data, position): the eight bytes of the contiguous uint8 array from `position` on as a uint64. They must
lie within it: nothing is checked."""
