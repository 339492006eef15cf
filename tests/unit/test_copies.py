"""Many narrow copies as one compiled call: the same as numpy's, wherever arrays lie."""

import functools

import numpy as np
import pytest

from hpcdist.ops.common import in_turn
from hpcdist.ops.tensor.copies import copies

ROWS = 512
JOINED = {
    "columns side by side": ((13, 16, 16, 1, 200), "float32", lambda a: a),
    "of one number": ((1,) * 26, "int64", lambda a: a),
    "of two bytes": ((5,) * 8, "float16", lambda a: a),
    "every second row": ((8,) * 8, "float32", lambda a: np.repeat(a, 2, 0)[::2]),
}
APART = {
    "too few": ((64,) * 3, lambda a: a),
    "few bytes": ((2,) * 4, lambda a: a),
    "wide rows": ((300,) * 4, lambda a: a),
    "backwards": ((16,) * 8, lambda a: a[::-1]),
    "every second column": ((16,) * 8, lambda a: np.repeat(a, 2, 1)[:, ::2]),
    "of another dtype": ((16,) * 8, lambda a: a.astype("float64")),
}


def arrays(widths, dtype):
    """Return the memory that parts of these widths share, the parts, and what goes there."""
    random = np.random.RandomState(0)
    out = np.zeros((ROWS, sum(widths)), dtype)
    parts = np.split(out, np.cumsum(widths)[:-1], axis=1)
    return out, parts, [(random.standard_normal(p.shape) * 9).astype(dtype) for p in parts]


def is_joined(call):
    return "kept" in vars(call)


@pytest.mark.parametrize("kind", JOINED)
def test_narrow_rows_are_copied_by_one_call(kind):
    widths, dtype, lie = JOINED[kind]
    out, parts, sources = arrays(widths, dtype)
    there = copies(np, [(part, lie(source)) for part, source in zip(parts, sources)])
    there()
    np.testing.assert_array_equal(out, np.concatenate(sources, 1))
    targets = [np.zeros_like(source) for source in sources]
    back = copies(np, zip(targets, parts))
    back()
    for target, source in zip(targets, sources):
        np.testing.assert_array_equal(target, source)
    assert is_joined(there)
    assert is_joined(back)


@pytest.mark.parametrize("kind", APART)
def test_what_is_no_narrow_rows_is_copied_by_numpy(kind):
    widths, lie = APART[kind]
    out, parts, sources = arrays(widths, "float32")
    moved = [lie(source) for source in sources]
    call = copies(np, zip(parts, moved))
    call()
    np.testing.assert_array_equal(out, np.concatenate(moved, 1))
    assert not is_joined(call)
    assert [step.func for step in in_turn(call)] == [np.copyto] * len(widths)


def test_overlapping_rows_are_copied_by_numpy():
    memory = np.arange(ROWS * 65, dtype="float32").reshape(ROWS, 65)
    expected = memory[:, :16].copy()
    pairs = [(memory[:, i : i + 16], memory[:, i + 1 : i + 17]) for i in range(0, 64, 16)]
    call = copies(np, pairs)
    call()
    np.testing.assert_array_equal(memory[:, :16], expected + 1)
    assert not is_joined(call)


def test_what_else_does_it_is_called_where_joining_does_not_pay():
    otherwise = functools.partial(int)
    assert copies(np, [], otherwise) is otherwise
