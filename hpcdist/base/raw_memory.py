"""Memory by address, for kernels: rows lie in many separate pieces, which numba cannot index.

An address that is wrong is not noticed; only the kernels of tables use this.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending
from numba.core import cgutils, types

intrinsic: Any = extending.intrinsic  # untyped, and what it returns is called by kernels only
_BYTE = ir.IntType(8)
_INT32 = ir.IntType(32)


def _view(dtype: Any) -> Any:
    @intrinsic
    def at(typing: Any, address: Any) -> Any:
        pointer = types.CPointer(dtype)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(pointer))

        return pointer(types.int64), generate

    return at


uint64_at = _view(types.uint64)
uint32_at = _view(types.uint32)
uint16_at = _view(types.uint16)
int16_at = _view(types.int16)
int8_at = _view(types.int8)
float32_at = _view(types.float32)


@intrinsic
def prefetch(typing: Any, address: Any) -> Any:
    """Ask for the cache line at ``address``, which need not be valid."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.PointerType(_BYTE))
        kind = ir.FunctionType(ir.VoidType(), [place.type, _INT32, _INT32, _INT32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        # To be read, into the second-level cache: as many as can be under way at once. Into the
        # first level, pulls took 1.3 times as long where this was measured.
        builder.call(function, [place, _INT32(0), _INT32(2), _INT32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def copy_bytes(typing: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy ``count`` bytes between addresses that do not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.PointerType(_BYTE)
        to, origin = (builder.inttoptr(a, pointer) for a in arguments[:2])
        cgutils.raw_memcpy(builder, to, origin, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def bit_length(typing: Any, number: Any) -> Any:
    """Return the place of a uint64's highest bit, from 1; 0 of 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zeros = builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))
        return builder.sub(ir.Constant(ir.IntType(64), 64), zeros)

    return types.int64(types.uint64), generate


@intrinsic
def bits_of(typing: Any, number: Any) -> Any:
    """Return the bits of a float32 as uint32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _INT32)

    return types.uint32(types.float32), generate


@intrinsic
def float_of(typing: Any, bits: Any) -> Any:
    """Return the float32 of a uint32's bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


def _find_in_line(shift: int) -> Any:
    @intrinsic
    def find(typing: Any, line: Any, wanted: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            lanes = ir.VectorType(ir.IntType(64), 8)
            entries = builder.load(builder.inttoptr(arguments[0], ir.PointerType(lanes)), align=64)
            parts = builder.lshr(entries, ir.Constant(lanes, [shift] * 8))
            none = ir.Constant(lanes, ir.Undefined)
            one = builder.insert_element(none, arguments[1], _INT32(0))
            everywhere = ir.Constant(ir.VectorType(_INT32, 8), [0] * 8)
            all_wanted = builder.shuffle_vector(one, none, everywhere)
            bits = builder.bitcast(builder.icmp_unsigned("==", parts, all_wanted), _BYTE)
            first = builder.cttz(bits, ir.Constant(ir.IntType(1), 0))
            return builder.zext(first, ir.IntType(64))

        return types.int64(types.int64, types.uint64), generate

    return find


# (line, wanted): which of the eight uint64 of a cache line has this value, or this value as its
# high half; 8 if none has. In two or three instructions, which a loop would not become.
find_entry = _find_in_line(0)
find_high_half = _find_in_line(32)
