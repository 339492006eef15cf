"""Optimizer operators: sum, scale and update in one pass; blocks; GPU formulas; sparse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from hpcdist.base.optimizers import OPTIMIZERS
from hpcdist.errors import GraphError
from hpcdist.executor.executor import Executor
from hpcdist.fluid.layers import data
from hpcdist.graph.program import Program, program_guard
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.ops.optimize import update_device
from hpcdist.ops.optimize.operators import bind_sparse_update, bind_update
from hpcdist.ops.optimize.sparse_gradients import are_members
from tests.support.device import asarray, install

Arrays = list[np.ndarray]

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((type, {}) for type in OPTIMIZERS),
    ("momentum", {"use_nesterov": True}),
    ("rmsprop", {"centered": True}),
    ("ftrl", {"l1": 0.1, "l2": 0.2}),
    ("ftrl", {"l1": 0.1, "lr_power": -0.3}),
    ("adam", {"scaled_epsilon": True, "epsilon": 0.5}),
    ("unbiased_lamb", {"weight_decay": 0.0}),
]
NAMES = [f"{type} {own}" if own else type for type, own in VARIANTS]


def arrays_for(type: str, size: int, dtype: Any = np.float32) -> tuple[np.ndarray, Arrays]:
    rng = np.random.default_rng(3)
    param = rng.normal(size=size).astype(dtype)
    state = []
    for slot in OPTIMIZERS[type].state:
        power = {"Beta1Pow": 0.9, "Beta2Pow": 0.999}.get(slot)
        low, high = {"MeanSquare": (2, 4), "MeanGrad": (-1, 1)}.get(slot, (0.1, 4))
        held = [power] if power else rng.uniform(low, high, size)
        state.append(np.array(held, dtype))
    return param, state


def attrs_of(type: str, own: Mapping[str, Any]) -> dict[str, Any]:
    return {**OPTIMIZERS[type].attrs, **own}


RATE = np.array([0.01], np.float32)


AS_CALLS = {"sgd", "momentum", "adagrad", "decayed_adagrad", "adam", "rmsprop", "adadelta"}
AS_CALLS.add("rated_adadelta")


@pytest.mark.parametrize(
    ("type", "own", "dtype"),
    [*((type, own, np.float32) for type, own in VARIANTS), ("adam", {}, np.float64)],
)
@pytest.mark.parametrize("count", [1, 3])
def test_of_few_elements_calls_of_numpy_have_the_bits_of_the_pass(type, own, dtype, count) -> None:
    attrs = attrs_of(type, own)
    grads = (np.random.default_rng(0).normal(size=(3, 40)) * 3).astype(dtype)
    moved = []
    for as_calls in (False, True):
        param, state = arrays_for(type, 40, dtype)
        rate = RATE.astype(dtype)
        call = bind_update(np, type, attrs, param, rate, state, grads, range(count), 1 / count)
        parts = getattr(call, "parts", None)
        assert (parts is not None) == (type in AS_CALLS)
        for _ in range(5):
            for step in parts if as_calls and parts else [call]:
                step()
        moved.append([param.tobytes(), *(array.tobytes() for array in state)])
    assert moved[0] == moved[1]


def test_of_many_elements_an_update_is_a_pass_alone() -> None:
    param, state = arrays_for("adam", 2500)
    call = bind_update(np, "adam", attrs_of("adam", {}), param, RATE, state, param[None])
    assert not hasattr(call, "parts")


@pytest.mark.parametrize(("type", "own"), VARIANTS, ids=NAMES)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_sum_scale_and_update_in_one_pass(type: str, own: dict[str, Any], count: int) -> None:
    """Rows of a strided arena, added in order: the same bits as a sum, a product, an update."""
    n, attrs = 2500, attrs_of(type, own)
    arena = np.random.default_rng(0).normal(size=(6, n + 64)).astype(np.float32)
    rows = arena[:, 32 : 32 + n]
    contributors = [4, 0, 5, 1, 3][:count]
    total = rows[contributors[0]].copy()
    for k in contributors[1:]:
        total += rows[k]
    total *= np.float32(1 / count)

    param, state = arrays_for(type, n)
    bind_update(np, type, attrs, param, RATE, state, rows, contributors, 1 / count)()
    want, want_state = arrays_for(type, n)
    bind_update(np, type, attrs, want, RATE, want_state, total[None])()
    np.testing.assert_array_equal(param, want)
    for got, wanted in zip(state, want_state):
        np.testing.assert_array_equal(got, wanted)


# The rates of the others depend on the norm of the block.
BY_NORMS = [("lars_momentum", {}), ("lamb", {}), ("unbiased_lamb", {})]
CUTTABLE = [variant for variant in VARIANTS if variant not in BY_NORMS]


@pytest.mark.parametrize(("type", "own"), CUTTABLE)
def test_blocks_move_as_the_whole(type: str, own: dict[str, Any]) -> None:
    n, cut, attrs = 3000, 1217, attrs_of(type, own)
    grads = np.random.default_rng(1).normal(size=(2, n)).astype(np.float32)
    whole, state = arrays_for(type, n)
    parts, part_state = arrays_for(type, n)
    bind_update(np, type, attrs, whole, RATE, state, grads, (0, 1), 0.5)()
    for piece in (slice(0, cut), slice(cut, n)):
        own_state = [s[piece] if s.size == n else s.copy() for s in part_state]
        bind_update(np, type, attrs, parts[piece], RATE, own_state, grads[:, piece], (0, 1), 0.5)()
    np.testing.assert_array_equal(parts, whole)


@pytest.mark.parametrize(("type", "own"), VARIANTS, ids=NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_device_formulas_agree_with_the_compiled_ones(
    type: str, own: dict[str, Any], dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, attrs = 500, attrs_of(type, own)
    grads = np.random.default_rng(2).normal(size=(3, n)).astype(dtype)
    rate = RATE.astype(dtype)
    param, state = arrays_for(type, n, dtype)
    bind_update(np, type, attrs, param, rate, state, grads, (0, 1, 2), 1 / 3)()
    update = OPTIMIZERS[type]
    other, other_state = arrays_for(type, n, dtype)
    hyper = np.array([1 / 3, *update.hyper(attrs, dtype)], dtype)
    cupy = install(monkeypatch)
    on_device = [asarray(array) for array in (other, rate, *other_state, *grads)]
    moved, lr, states, rows = on_device[0], on_device[1], on_device[2:-3], on_device[-3:]
    lr = lr if update.has_rate else moved
    update_device.bind(cupy, update.rule(attrs), moved, lr, states, hyper, rows)()
    other, other_state = moved.get(), [state.get() for state in states]
    assert param.dtype == other.dtype == dtype
    near = 2e-6 if dtype == np.float32 else 1e-13
    near *= 100 if "lr_power" in own else 1  # powers cancel
    np.testing.assert_allclose(other, param, rtol=near, atol=near)
    for got, wanted in zip(other_state, state):
        np.testing.assert_allclose(got, wanted, rtol=10 * near)


def test_rows_must_be_contiguous() -> None:
    grads = np.zeros((2, 20), np.float32)[:, ::2]
    with pytest.raises(GraphError, match="contiguous"):
        bind_update(np, "sgd", {}, np.zeros(10, np.float32), RATE, [], grads)


def test_a_parameter_and_gradient_of_zero_do_not_give_nan() -> None:
    for type in ("lars_momentum", "ftrl", "lamb"):
        param = np.zeros(5, np.float32)
        state = [np.zeros(1 if "Pow" in s else 5, np.float32) for s in OPTIMIZERS[type].state]
        bind_update(
            np, type, OPTIMIZERS[type].attrs, param, RATE, state, np.zeros((1, 5), np.float32)
        )()
        np.testing.assert_array_equal(param, 0)


@pytest.mark.parametrize(
    ("start", "slope", "want"),
    [(0.0, 1.0, [-0.1, -0.19001, -0.271038]), (0.5, 0.0, [0.499975, 0.4999275, 0.49985975])],
)
def test_lars_takes_the_rate_itself_while_parameter_or_gradient_is_zero(start, slope, want) -> None:
    # Two equal elements, trained by Fluid 1.8.5 (LarsMomentum(0.1, 0.9), its other defaults).
    param, velocity = np.full(2, start, np.float32), np.zeros(2, np.float32)
    facts = {**OPTIMIZERS["lars_momentum"].attrs, "mu": 0.9}
    grads = np.full((1, 2), slope, np.float32)
    rate = np.array([0.1], np.float32)
    step = bind_update(np, "lars_momentum", facts, param, rate, [velocity], grads)
    for expected in want:
        step()
        np.testing.assert_allclose(param, expected, rtol=1e-6)


# -- sparse gradients ------------------------------------------------------------------------------
HEIGHT, WIDTH = 7, 3
SPARSE = [(t, o) for t, o in VARIANTS if OPTIMIZERS[t].sparse(attrs_of(t, o))]
SPARSE.append(("adam", {"lazy_mode": True}))


def table_for(type: str) -> tuple[np.ndarray, Arrays]:
    param, state = arrays_for(type, HEIGHT * WIDTH)
    shaped = [s.reshape(HEIGHT, WIDTH) if s.size > 1 else s for s in state]
    return param.reshape(HEIGHT, WIDTH), shaped


def rows_of(*rows: int) -> SelectedRows:
    value = np.random.default_rng(5).normal(size=(len(rows), WIDTH)).astype(np.float32)
    return SelectedRows(np.array(rows, np.int64), value, HEIGHT)


@pytest.mark.parametrize(("type", "own"), SPARSE)
def test_sparse_equals_dense_where_rows_are_listed(type: str, own: dict[str, Any]) -> None:
    attrs, gradient = attrs_of(type, own), rows_of(5, 1, 5, 2)
    param, state = table_for(type)
    before = param.copy()
    bind_sparse_update(np, type, attrs, param, RATE, state, scale=0.5)(gradient)
    want, want_state = table_for(type)
    if type == "adam":  # as in Fluid, whose sparse kernel multiplies the powers first
        want_state[2] *= np.float32(0.9)
        want_state[3] *= np.float32(0.999)
    dense = (gradient.to_dense() * np.float32(0.5))[None]
    bind_update(np, type, attrs, want, RATE, want_state, dense)()
    listed = [1, 2, 5]
    np.testing.assert_allclose(param[listed], want[listed], rtol=1e-6)
    others = [0, 3, 4, 6]
    stays = OPTIMIZERS[type].sparse(attrs) != "all"
    np.testing.assert_array_equal(param[others], before[others] if stays else want[others])


@pytest.mark.parametrize(("type", "own"), SPARSE)
def test_no_rows_change_nothing(type: str, own: dict[str, Any]) -> None:
    param, state = table_for(type)
    bind_sparse_update(np, type, attrs_of(type, own), param, RATE, state)(rows_of())
    want, want_state = table_for(type)
    for got, wanted in zip([param, *state], [want, *want_state]):
        np.testing.assert_array_equal(got, wanted)


def test_adam_multiplies_its_powers_once_per_sparse_step() -> None:
    param, state = table_for("adam")
    apply = bind_sparse_update(np, "adam", attrs_of("adam", {}), param, RATE, state)
    apply(rows_of(1, 2))
    apply(rows_of(3))
    np.testing.assert_allclose([state[2][0], state[3][0]], [0.9**3, 0.999**3], rtol=1e-6)


def test_a_binary_search_of_an_unsorted_list_misses_rows() -> None:
    def finds(rows: list[int], row: int) -> bool:
        low, high = 0, len(rows) - 1
        while low <= high:
            middle = (low + high) // 2
            if rows[middle] == row:
                return True
            low, high = (middle + 1, high) if rows[middle] < row else (low, middle - 1)
        return False

    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 8, 9, 31):
        for _ in range(20):
            rows = rng.permutation(n)
            want = [finds(list(rows), row) for row in rows]
            np.testing.assert_array_equal(are_members(rows), want)
        assert are_members(np.arange(n)).all()


@pytest.mark.parametrize("type", ["momentum", "rmsprop"])
def test_rows_lost_by_fluid_can_be_kept(monkeypatch: pytest.MonkeyPatch, type: str) -> None:
    unsorted = rows_of(6, 2, 0)  # Fluid's search finds row 2 only
    moved = {}
    for setting in ("fluid", "exact"):
        monkeypatch.setenv("HPCDIST_SPARSE_ROWS", setting)
        param = np.zeros((HEIGHT, WIDTH), np.float32)
        state = [np.zeros_like(param) for _ in OPTIMIZERS[type].state]
        bind_sparse_update(np, type, attrs_of(type, {}), param, RATE, state)(unsorted)
        moved[setting] = sorted(np.flatnonzero(param.any(1)))
    assert moved == {"fluid": [2], "exact": [0, 2, 6]}


def test_a_row_outside_the_table_is_an_error() -> None:
    param = np.zeros((HEIGHT, WIDTH), np.float32)
    with pytest.raises(IndexError, match="outside the table"):
        bind_sparse_update(np, "sgd", {}, param, RATE, [])(rows_of(1, HEIGHT))


@pytest.mark.parametrize("in_place", [False, True])
def test_adadelta_reads_the_updates_that_it_has_written_only_over_the_old_ones(in_place) -> None:
    param, (squares, updates) = arrays_for("adadelta", 6)
    grad, rho, epsilon = np.arange(6, dtype=np.float32), 0.9, 1e-6
    new = rho * squares + (1 - rho) * grad * grad
    step = np.sqrt((updates + epsilon) / (new + epsilon)) * grad
    later = rho * updates + (1 - rho) * step * step
    taken = np.sqrt((later + epsilon) / (new + epsilon)) * grad if in_place else step
    fed = {"Param": param, "AvgSquaredGrad": squares, "AvgSquaredUpdate": updates, "Grad": grad}
    program = Program()
    block = program.global_block()
    with program_guard(program, Program()):
        read = {slot: data(slot, [6], append_batch_size=False) for slot in fed}
        written = {"ParamOut": "Param", "AvgSquaredGradOut": "AvgSquaredGrad"}
        written["AvgSquaredUpdateOut"] = "AvgSquaredUpdate"
        outs = {
            out: read[slot] if in_place else block.create_var(out, dtype="float32")
            for out, slot in written.items()
        }
        block.append_op("adadelta", read, outs, {"rho": rho, "epsilon": epsilon})
    feed = {slot: value.copy() for slot, value in fed.items()}
    got = Executor().run(program, feed=feed, fetch_list=list(outs.values()))
    for value, wanted in zip(got, (param - taken, new, later), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-4)
