"""Numbers rounded sixteen at once, for `packed_kernels`.

Rows are short: of a loop over one a compiler makes lanes only for what is left over, if at all. So
the lanes are written down here, with the formulas of `row_values.random_bits` and of the types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from hpcdist.base.raw_memory import intrinsic

LANES = 16
_INT8, _INT16, _INT32 = (ir.IntType(bits) for bits in (8, 16, 32))
_WORDS, _FLOATS = ir.VectorType(_INT32, LANES), ir.VectorType(ir.FloatType(), LANES)
_DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
_FLOOR = ir.FunctionType(_DOUBLES, [_DOUBLES])
_declared: Any = cgutils.get_or_insert_function  # untyped
_GOLDEN = 0x9E3779B9
_INFINITE = 0x7F800000


class _Lanes:
    """Sixteen uint32, float32 or float64, with the operators of one; numbers stand for sixteen."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def _do(self, operation: str, other: Any) -> _Lanes:
        number = not isinstance(other, _Lanes)
        value = ir.Constant(self.value.type, [other] * LANES) if number else other.value
        return _Lanes(self.builder, getattr(self.builder, operation)(self.value, value))

    def _kind(self, of_words: str, of_floats: str) -> str:
        return of_words if self.value.type == _WORDS else of_floats

    def __add__(self, other: Any) -> _Lanes:
        return self._do(self._kind("add", "fadd"), other)

    def __sub__(self, other: Any) -> _Lanes:
        return self._do("sub", other)

    def __mul__(self, other: Any) -> _Lanes:
        return self._do(self._kind("mul", "fmul"), other)

    def __and__(self, other: Any) -> _Lanes:
        return self._do("and_", other)

    def __or__(self, other: Any) -> _Lanes:
        return self._do("or_", other)

    def __xor__(self, other: Any) -> _Lanes:
        return self._do("xor", other)

    def __lshift__(self, other: Any) -> _Lanes:
        return self._do("shl", other)

    def __rshift__(self, other: Any) -> _Lanes:
        return self._do("lshr", other)

    def if_(self, comparison: str, than: Any, chosen: Any, other: Any) -> _Lanes:
        """Return ``chosen`` where the comparison with ``than`` is true, else ``other``."""
        builder = self.builder
        compare = self._kind("icmp_unsigned", "fcmp_ordered")
        where = getattr(builder, compare)(comparison, self.value, self.like(than).value)
        return _Lanes(
            builder, builder.select(where, self.like(chosen).value, self.like(other).value)
        )

    def like(self, number: Any) -> _Lanes:
        """Return a number as lanes of the same kind."""
        if isinstance(number, _Lanes):
            return number
        return _Lanes(self.builder, ir.Constant(self.value.type, [number] * LANES))

    def least(self, other: int) -> _Lanes:
        """Return the lesser of each and ``other``."""
        return self.if_("<", other, self, other)

    def as_(self, operation: str, kind: Any) -> _Lanes:
        """Return the numbers in another type, by an instruction."""
        return _Lanes(self.builder, getattr(self.builder, operation)(self.value, kind))


def _all(builder: Any, number: Any) -> _Lanes:
    """Return a number of the kernel, in every lane."""
    kind = ir.VectorType(number.type, LANES)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), number, _INT32(0))
    places = ir.Constant(_WORDS, [0] * LANES)
    return _Lanes(builder, builder.shuffle_vector(one, one, places))


def _scrambled(x: _Lanes) -> _Lanes:
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


def _noise(builder: Any, low: Any, high: Any, number: Any) -> _Lanes:
    """Return `row_values.random_bits` of the elements from ``number`` on."""
    first = builder.add(low, builder.mul(number, _INT32(_GOLDEN)))
    steps = ir.Constant(_WORDS, [k * _GOLDEN % (1 << 32) for k in range(LANES)])
    x = _all(builder, first) + _Lanes(builder, steps)
    return _scrambled(_scrambled(x) ^ _all(builder, high))


def _rounded(number: _Lanes, shift: _Lanes | int, noise: _Lanes | None) -> _Lanes:
    """Return numbers without their lowest ``shift`` bits, rounded: to even, or by noise."""
    mask = (number.like(1) << shift) - 1
    even = (mask >> 1) + ((number >> shift) & 1)
    return (number + (even if noise is None else noise & mask)) >> shift


def _half(bits: _Lanes, noise: _Lanes | None) -> _Lanes:
    """Return float16 of the bits of float32, without their sign."""
    size = bits & 0x7FFFFFFF
    exponent = size >> 23
    # Less than 2^-14 has fewer digits, less than 2^-32 none.
    shift = size.if_("<", 0x38800000, (size.like(126) - exponent).least(31), 13)
    digits = exponent.if_(">", 94, (size & 0x7FFFFF) | 0x800000, 0)
    number = size.if_("<", 0x38800000, digits, size - 0x38000000)
    half = _rounded(number, shift, noise).least(0x7C00)
    half = size.if_(">", _INFINITE, 0x7E00, half)
    return size.if_("==", _INFINITE, 0x7C00, half)


def _bfloat(bits: _Lanes, noise: _Lanes | None) -> _Lanes:
    size = bits & 0x7FFFFFFF
    return size.if_(">", _INFINITE, 0x7FC0, _rounded(size, 16, noise).least(0x7F80))


def _load(builder: Any, address: Any) -> _Lanes:
    place = builder.inttoptr(address, ir.PointerType(_FLOATS))
    return _Lanes(builder, builder.load(place, align=4))


def _store(builder: Any, lanes: _Lanes, kind: Any, address: Any) -> None:
    narrow = builder.trunc(lanes.value, ir.VectorType(kind, LANES))
    builder.store(narrow, builder.inttoptr(address, ir.PointerType(narrow.type)), align=1)


def _to_halves(formula: Callable[..., _Lanes], by_chance: bool) -> Any:
    @intrinsic
    def write(
        typing: Any,
        source: Any,
        place: Any,
        low: Any,
        high: Any,
        number: Any,
        first: Any,
        second: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address, target, low, high, number, first, second = arguments
            values = _load(builder, address) * _all(builder, first) * _all(builder, second)
            bits = values.as_("bitcast", _WORDS)
            noise = _noise(builder, low, high, number) if by_chance else None
            _store(builder, formula(bits, noise) | ((bits >> 16) & 0x8000), _INT16, target)
            return context.get_dummy_value()

        of_key = types.uint32, types.uint32, types.uint32
        return types.void(types.int64, types.int64, *of_key, types.float32, types.float32), generate

    return write


def _to_whole(by_chance: bool) -> Any:
    @intrinsic
    def write(
        typing: Any, source: Any, place: Any, low: Any, high: Any, number: Any, factor: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address, target, low, high, number, factor = arguments
            scaled = _load(builder, address).as_("fpext", _DOUBLES) * _all(builder, factor)
            part: Any = 0.5
            if by_chance:
                noise = _noise(builder, low, high, number) >> 1
                part = noise.as_("sitofp", _DOUBLES) * 2.0**-31
            floor = _declared(builder.module, _FLOOR, "llvm.floor.v16f64")
            whole = _Lanes(builder, builder.call(floor, [(scaled + part).value]))
            whole = whole.if_("<", -127.0, -127.0, whole).if_(">", 127.0, 127.0, whole)
            _store(builder, whole.as_("fptosi", _WORDS), _INT8, target)
            return context.get_dummy_value()

        of_key = types.uint32, types.uint32, types.uint32
        return types.void(types.int64, types.int64, *of_key, types.float64), generate

    return write


# (address of sixteen float32, where to write them, low, high, number of the first: see
# `row_values.random_bits`, ...): values times two factors, or, as int8, times one in float64.
half_by_chance, half_nearest = _to_halves(_half, True), _to_halves(_half, False)
bfloat_by_chance, bfloat_nearest = _to_halves(_bfloat, True), _to_halves(_bfloat, False)
whole_by_chance, whole_nearest = _to_whole(True), _to_whole(False)


@intrinsic
def largest_size(typing: Any, source: Any, count: Any) -> Any:
    """Return the bits of the largest absolute value of the first ``count`` of sixteen float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sizes = _load(builder, arguments[0]).as_("bitcast", _WORDS) & 0x7FFFFFFF
        places = _Lanes(builder, ir.Constant(_WORDS, list(range(LANES))))
        count = _all(builder, builder.trunc(arguments[1], _INT32))
        found = places.if_("<", count, sizes, 0)
        for distance in (8, 4, 2, 1):
            order = ir.Constant(_WORDS, [(k + distance) % LANES for k in range(LANES)])
            moved = builder.shuffle_vector(found.value, found.value, order)
            found = found.if_(">", _Lanes(builder, moved), found, _Lanes(builder, moved))
        return builder.extract_element(found.value, _INT32(0))

    return types.uint32(types.int64, types.int64), generate
