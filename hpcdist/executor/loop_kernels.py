"""The one compiled call that walks a table of numpy's inner loops (numba)."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types

from hpcdist.base.jit import jit

intrinsic: Any = extending.intrinsic  # untyped, and what it returns is called by kernels only

# Where the parts of a row begin: (loop, data, operands, dimensions, strides).
OPERANDS, DIMENSIONS, STRIDES, COLUMNS = 2, 6, 10, 20
_WORD = 8


@intrinsic
def call_loop(
    typing: Any, loop: Any, operands: Any, dimensions: Any, strides: Any, data: Any
) -> Any:
    """Call the inner loop at an address with four pointers (PyUFuncGenericFunction)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.PointerType(ir.IntType(8))
        kind = ir.FunctionType(ir.VoidType(), [pointer] * 4)
        function = builder.inttoptr(arguments[0], ir.PointerType(kind))
        builder.call(function, [builder.inttoptr(a, pointer) for a in arguments[1:]])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


# It keeps the interpreter's lock, as numpy does for few elements: to let it go and to take it
# again is longer than most of these loops.
@jit(nogil=False)
def walk(table):
    """Make every call of a table [calls, COLUMNS], one after the other."""
    place = table.ctypes.data
    for i in range(len(table)):
        call_loop(
            table[i, 0],
            place + OPERANDS * _WORD,
            place + DIMENSIONS * _WORD,
            place + STRIDES * _WORD,
            table[i, 1],
        )
        place += COLUMNS * _WORD
