"""Numbers read and rounded sixteen at once, for `packed_kernels`.

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


def _called(name: str, *operands: _Lanes) -> _Lanes:
    """Return the result of an intrinsic of LLVM on lanes of one type."""
    builder, values = operands[0].builder, [lanes.value for lanes in operands]
    kind = ir.FunctionType(values[0].type, [value.type for value in values])
    return _Lanes(builder, builder.call(_declared(builder.module, kind, f"llvm.{name}"), values))


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


def _load(builder: Any, address: Any, kind: Any = _FLOATS) -> _Lanes:
    place = builder.inttoptr(address, ir.PointerType(kind))
    return _Lanes(builder, builder.load(place, align=1))


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, ir.PointerType(value.type)), align=1)


def _narrow(lanes: _Lanes, kind: Any) -> Any:
    return lanes.builder.trunc(lanes.value, ir.VectorType(kind, LANES))


def _named(name: str, function: Any) -> Any:
    """Return an intrinsic: kernels made with it have its name in theirs."""
    function.__name__ = name
    return intrinsic(function)


def _writer(name: str, formula: Callable[..., Any], factor: Any = types.float32) -> Any:
    """Make an intrinsic that reads sixteen float32 and writes the results of ``formula``."""

    def write(
        typing: Any,
        source: Any,
        place: Any,
        key: Any,
        number: Any,
        first: Any,
        second: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address, target, key, number, *factors = arguments
            low = builder.trunc(key, _INT32)
            high = builder.trunc(builder.lshr(key, ir.Constant(key.type, 32)), _INT32)
            chance = low, high, number
            _store(builder, formula(_load(builder, address), chance, *factors), target)
            return context.get_dummy_value()

        kinds = types.int64, types.int64, types.uint64, types.uint32, factor, factor
        return types.void(*kinds), generate

    return _named(name, write)


def _to_halves(name: str, formula: Callable[..., _Lanes], by_chance: bool) -> Any:
    def halves(values: _Lanes, chance: Any, first: Any, second: Any) -> Any:
        builder = values.builder
        bits = (values * _all(builder, first) * _all(builder, second)).as_("bitcast", _WORDS)
        noise = _noise(builder, *chance) if by_chance else None
        return _narrow(formula(bits, noise) | ((bits >> 16) & 0x8000), _INT16)

    return _writer(name, halves)


def _to_whole(name: str, by_chance: bool) -> Any:
    def numbers(values: _Lanes, chance: Any, factor: Any, _: Any) -> Any:
        builder = values.builder
        scaled = values.as_("fpext", _DOUBLES) * _all(builder, factor)
        if by_chance:
            # The product is exact: one instruction, or two, give the same bits.
            part = (_noise(builder, *chance) >> 1).as_("sitofp", _DOUBLES)
            moved = _called("fmuladd.v16f64", part, part.like(2.0**-31), scaled)
        else:
            moved = scaled + 0.5
        whole = _called("floor.v16f64", moved).as_("fptosi", _WORDS)
        whole = _called("smax.v16i32", whole, whole.like(-127))
        whole = _called("smin.v16i32", whole, whole.like(127))
        return _narrow(whole, _INT8)

    return _writer(name, numbers, types.float64)


def _reader(name: str, kind: Any, formula: Callable[[_Lanes], _Lanes] | None) -> Any:
    """Make an intrinsic that reads sixteen numbers and writes float32, times two factors."""

    def read(typing: Any, source: Any, place: Any, first: Any, second: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address, target, first, second = arguments
            lanes = _load(builder, address, ir.VectorType(kind, LANES))
            if formula is not None:
                lanes = formula(lanes) * _all(builder, first) * _all(builder, second)
            _store(builder, lanes.value, target)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.float32, types.float32), generate

    return _named(name, read)


def _of_halves(halves: _Lanes) -> _Lanes:
    bits = halves.as_("zext", _WORDS)
    size = bits & 0x7FFF
    digits = size << 13
    finite = (digits.as_("bitcast", _FLOATS) * 2.0**112).as_("bitcast", _WORDS)
    number = size.if_(">=", 0x7C00, digits | _INFINITE, finite)
    return (number | ((bits & 0x8000) << 16)).as_("bitcast", _FLOATS)


def _of_bfloats(halves: _Lanes) -> _Lanes:
    return (halves.as_("zext", _WORDS) << 16).as_("bitcast", _FLOATS)


# (address of sixteen float32, where to write them, key, number of the first: see
# `row_values.random_bits`, two factors): values times both, or, as int8, times the first, float64.
half_by_chance = _to_halves("half_by_chance", _half, True)
half_nearest = _to_halves("half_nearest", _half, False)
bfloat_by_chance = _to_halves("bfloat_by_chance", _bfloat, True)
bfloat_nearest = _to_halves("bfloat_nearest", _bfloat, False)
whole_by_chance = _to_whole("whole_by_chance", True)
whole_nearest = _to_whole("whole_nearest", False)
write_floats = _writer("write_floats", lambda values, *_: values.value)
# (address of sixteen numbers, where to write them as float32, two factors).
read_halves = _reader("read_halves", _INT16, _of_halves)
read_bfloats = _reader("read_bfloats", _INT16, _of_bfloats)
read_whole = _reader("read_whole", _INT8, lambda whole: whole.as_("sitofp", _FLOATS))
read_floats = _reader("read_floats", ir.FloatType(), None)


@intrinsic
def largest_size(typing: Any, source: Any, count: Any) -> Any:
    """Return the bits of the largest absolute value of the first ``count`` of sixteen float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sizes = _load(builder, arguments[0]).as_("bitcast", _WORDS) & 0x7FFFFFFF
        places = _Lanes(builder, ir.Constant(_WORDS, list(range(LANES))))
        count = _all(builder, builder.trunc(arguments[1], _INT32))
        found = places.if_("<", count, sizes, 0)
        kind = ir.FunctionType(_INT32, [_WORDS])
        name = "llvm.vector.reduce.umax.v16i32"
        return builder.call(_declared(builder.module, kind, name), [found.value])

    return types.uint32(types.int64, types.int64), generate
