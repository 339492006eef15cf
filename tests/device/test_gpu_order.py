"""What runs later on a GPU: copies, checks of ids, sums that do not come. Over the stand-in."""

from __future__ import annotations

import ctypes
import gc
import importlib.metadata
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.base import device
from hpcdist.comm import nccl_communicator, watchdog
from hpcdist.comm.host_collective import HostCollective
from hpcdist.comm.loopback import world
from hpcdist.errors import FeedError, HpcdistError
from hpcdist.executor.backend import CupyBackend
from hpcdist.executor.memory import adjacent, lay_contiguous
from hpcdist.graph.registry import Meta
from hpcdist.ops.by_torch import tensor_on
from hpcdist.ops.embedding import run_kernels
from hpcdist.ops.embedding.run_kernels import add_at, add_runs
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.ops.loss import labels
from tests.support import nccl as support_nccl
from tests.support.device import JIT, MODULE, DeviceArray, asarray, install
from tests.support.streams import LIMIT_S, MACHINE, Stream


@pytest.fixture(autouse=True, params=[0, 1, 2])
def cupy(monkeypatch, request):
    return install(monkeypatch, seed=request.param)


# -- the stand-in itself -------------------------------------------------------------------------
def test_a_kernel_runs_once_somebody_waits_and_a_stream_overtakes_another_without_an_event():
    seen = set()
    for seed in range(20):
        MACHINE.restart(seed)
        array, other = asarray(np.zeros(1)), MODULE.cuda.Stream(non_blocking=True)
        assert array.get()[0] == 0
        array += 1
        with other:
            array *= 10
        other.synchronize()
        seen.add(float(array.get()[0]))
    assert len(seen) > 1  # a missing event is seen, under some seeds
    for seed in range(20):
        MACHINE.restart(seed)
        array, event = asarray(np.zeros(1)), MODULE.cuda.Event()
        array += 1
        event.record()
        other.wait_event(event)
        with other:
            array *= 10
            assert array.get()[0] == 10


def test_an_address_of_the_host_is_none_of_a_gpu():
    array = asarray(np.arange(3))
    assert MACHINE.at(array.data.ptr, 24).view(np.int64).base is not None
    with pytest.raises(AssertionError, match="no address of a GPU|reach too far"):
        MACHINE.at(np.zeros(3).ctypes.data, 24)
    ptr = array.data.ptr
    MACHINE.current().synchronize()
    del array
    gc.collect()
    with pytest.raises(AssertionError, match="was freed"):
        MACHINE.at(ptr, 24)
    assert not hasattr(MODULE.zeros(2).flags, "writeable")


def test_memory_that_is_freed_is_poison_for_all_but_what_was_launched_before():
    seen = set()
    for seed in range(20):
        MACHINE.restart(seed)
        array, kept, other = asarray(np.ones(1)), MODULE.empty(2), MODULE.cuda.Stream()
        kept[:1] = array
        MACHINE.current().synchronize()
        with other:
            kept[1:] = array  # nobody keeps the array until then
        del array
        MACHINE.current().synchronize()
        other.synchronize()
        assert kept[0].item() == 1
        seen.add(str(kept[1].item()))
    assert seen == {"1.0", "nan"}


def test_every_thread_has_a_current_device_of_its_own():
    array = MODULE.zeros(2)

    def elsewhere():
        MODULE.cuda.Device(1).use()
        with pytest.raises(ValueError, match="array device = 0 while current = 1"):
            array.fill(1)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    array.fill(1)


def test_set_reads_the_host_later():
    host, array = np.ones(3), MODULE.empty(3)
    array.set(host)
    host[:] = 2
    assert (array.get() == 2).all()
    array.set(host * 3)  # freed before it is read
    assert np.isnan(array.get()).all()


# -- copies ----------------------------------------------------------------------------------------
def test_what_is_fed_may_be_changed_or_freed_at_once(monkeypatch):
    monkeypatch.setattr(device, "CHUNK", 64)
    for turn in range(3 * device.SLOTS):
        host = np.full((5, 7), turn, np.float32)  # more than goes up at once
        array = MODULE.empty((5, 7), np.float32)
        device.upload(array, host)
        host[:] = -1
        del host
        if turn % 5 == 0:
            assert (device.download(array) == turn).all()
    other = MODULE.zeros((2, 4)).T
    device.upload(other, np.arange(8.0).reshape(4, 2))
    assert (device.download(other) == np.arange(8.0).reshape(4, 2)).all()


def test_more_may_be_on_its_way_than_pinned_memory_holds():
    arrays = [MODULE.empty(3) for _ in range(2 * device.SLOTS + 1)]
    for k, array in enumerate(arrays):
        device.upload(array, np.full(3, float(k)))
    assert [device.download(array)[0] for array in arrays] == [*range(len(arrays))]


def test_an_executor_computes_on_its_gpu_from_any_thread(monkeypatch):
    monkeypatch.setattr(MODULE.cuda.runtime, "getDeviceCount", lambda: 2)
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        out = fluid.layers.fc(fluid.data("x", [None, 3], "float32"), 2)
    exe = fluid.Executor(fluid.CUDAPlace(1))
    found = []

    def run():
        exe.run(startup, scope=scope)
        found.extend(exe.run(main, {"x": np.ones((4, 3), np.float32)}, [out], scope=scope))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found[0].shape == (4, 2) and np.isfinite(found[0]).all()
    MODULE.cuda.Device(0).use()
    (name,) = [v.name for v in main.all_parameters() if len(v.shape) == 2]
    assert np.isfinite(np.array(scope.find_var(name).get_tensor())).all()
    assert scope.find_var(name).value.device.id == 1


def test_values_of_one_sum_are_aligned_and_come_from_either_memory():
    backend, scope = CupyBackend(0), fluid.Scope()
    metas = {n: Meta((size,), "float32") for n, size in (("a", 3), ("b", 40), ("c", 1))}
    scope.var("a").hold(np.arange(3, dtype=np.float32))
    scope.var("b").hold(asarray(np.full(40, 2, np.float32)))
    network = SimpleNamespace(memory=lambda nbytes, backend: backend.bytes(nbytes))
    lay_contiguous([list("abc")], metas, scope, backend, network.memory)
    arrays = [scope.find_var(n).value for n in "abc"]
    assert [a.data.ptr % 128 for a in arrays] == [0, 0, 0] and adjacent(arrays, backend)
    flat = backend.flat(arrays).get()
    assert flat.size == 32 + 64 + 1
    assert flat[:3].tolist() == [0, 1, 2] and (flat[32:72] == 2).all()
    assert (flat[3:32] == 0).all() and (flat[72:96] == 0).all()


# -- what is told late ---------------------------------------------------------------------------
def looked_up(ids, rows=9):
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        word = fluid.data("word", [None, 1], "int64")
        out = fluid.layers.mean(fluid.embedding(word, [rows, 2]))
        out.persistable = True  # so that it is computed in every step
    exe = fluid.Executor(fluid.CUDAPlace(0))
    exe.run(startup, scope=scope)
    for k, batch in enumerate(ids):
        feed = {"word": np.array(batch).reshape(-1, 1)}
        fetched = exe.run(main, feed, [out] if k == len(ids) - 1 else [], scope=scope)
    return fetched


@pytest.mark.parametrize("wrong", [9, -1])
def test_a_wrong_id_is_told_before_any_value(wrong):
    assert looked_up([[0, 8], [3, 4]])
    with pytest.raises(FeedError, match=rf"id {wrong} is outside 0..8, the 9 rows"):
        looked_up([[1, wrong], [0, 1]])  # in a step that fetches nothing
    assert looked_up([[0, 8]])


def test_checks_that_nobody_looks_at_take_no_more_memory_and_are_not_lost(monkeypatch):
    monkeypatch.setattr(labels, "MOST_PENDING", 4)
    pending = labels.PendingChecks(MODULE)
    monkeypatch.setattr(labels, "pending_checks", lambda xp, device_id: pending)
    for k in range(11):
        labels.range_check(MODULE, asarray(np.array([k])), 20, "gather", "rows")()
    labels.range_check(MODULE, asarray(np.array([21])), 20, "gather", "rows")()
    with pytest.raises(FeedError, match="gather: id 21 is outside 0..19"):
        for _ in range(5):
            labels.range_check(MODULE, asarray(np.array([0])), 20, "gather", "rows")()
    pending.look()


def test_a_wrong_id_is_told_when_the_executor_is_closed():
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        word = fluid.data("word", [None, 1], "int64")
        fluid.embedding(word, [9, 2]).persistable = True
    exe = fluid.Executor(fluid.CUDAPlace(0))
    exe.run(startup, scope=scope)
    exe.run(main, {"word": np.array([[12]])}, scope=scope)
    with pytest.raises(FeedError, match="id 12 is outside"):
        exe.close()


@pytest.mark.parametrize("steps", [1, 5])
def test_a_branch_of_a_few_numbers_is_computed_without_waiting(steps):
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        rate = fluid.layers.piecewise_decay([2, 4], [0.5, 0.25, 0.125])
    exe = fluid.Executor(fluid.CUDAPlace(0))
    exe.run(startup, scope=scope)
    for _ in range(steps):
        MACHINE.counts.clear()
        (found,) = exe.run(main, fetch_list=[rate], scope=scope)
        assert MACHINE.counts.waits == 1  # to fetch
    assert found[0] == {1: 0.5, 5: 0.125}[steps]


def test_a_watchdog_ends_what_does_not_end():
    dog, late, ended = watchdog.Watchdog(grace_s=0), threading.Event(), threading.Event()
    dog.watch(lambda: False, late.set, 0.01)
    assert late.wait(LIMIT_S)
    dog.watch(ended.is_set, lambda: pytest.fail("it has ended"), 3600)
    ended.set()
    dog.watch(lambda: False, lambda: pytest.fail("there is no deadline"), None)


def test_a_watchdog_goes_on_when_what_it_watches_raises(caplog):
    dog, late = watchdog.Watchdog(grace_s=0), threading.Event()
    told = threading.Semaphore(0)

    def broken() -> bool:
        told.release()
        raise OSError("gone")

    dog.watch(broken, lambda: None, 3600)
    dog.watch(lambda: False, broken, 0.01)
    for _ in range(2):
        assert told.acquire(timeout=LIMIT_S)
    dog.watch(lambda: False, late.set, 0.01)
    assert late.wait(LIMIT_S)
    assert caplog.text.count("no longer watched") == 2


# -- repeated rows ---------------------------------------------------------------------------------
def repeated(n=200, rows=3, width=5):
    rng = np.random.default_rng(4)
    return rng.integers(0, rows, n), rng.normal(size=(n, width)).astype(np.float32)


def test_repeats_take_one_kernel_and_no_wait_and_are_added_in_order():
    ids, values = repeated()
    rows = SelectedRows(asarray(ids), asarray(values), 4)
    dense = MODULE.zeros((4, 5), np.float32)
    MACHINE.counts.clear()
    rows.add_to(dense)
    assert MACHINE.counts.launches <= 8 and MACHINE.counts.waits == 0
    expected = np.zeros((4, 5), np.float32)
    for row, value in zip(ids, values):
        expected[row] += value
    assert dense.get().tobytes() == expected.tobytes()
    merged = rows.merged()
    assert merged.rows.get().tolist() == [0, 1, 2]
    assert merged.value.get().tobytes() == expected[:3].tobytes()
    once = rows.totals(again=False).value.get()
    assert once.shape == values.shape and (once != 0).any(1).sum() == 3


def draw_places(rng, *extents):
    return [rng.integers(-extent, extent, (50, 3)) for extent in extents]


@pytest.mark.parametrize(
    ("shape", "deep", "turned"),
    [((5,), 1, False), ((4, 6), 1, False), ((4, 6), 2, False), ((4, 6, 2), 1, True)],
)
def test_what_is_added_at_repeated_places_has_the_same_bits_in_every_order_of_threads(
    shape, deep, turned
):
    rng = np.random.default_rng(0)
    target = rng.standard_normal(shape, np.float32)
    places = draw_places(rng, *(target.T if turned else target).shape[:deep])
    seen = target.T if turned else target
    values = rng.standard_normal((50, 3, *seen.shape[deep:]), np.float32)
    values *= (10.0 ** rng.integers(-3, 4, values.shape)).astype(np.float32)  # sums that round
    found = set()
    for seed in range(4):
        MACHINE.restart(seed)
        device = asarray(target)
        on_device = tuple(asarray(ids) for ids in places)
        add_at(MODULE, device.T if turned else device, on_device, asarray(values))
        found.add(device.get().tobytes())
    (only,) = found
    np.add.at(seen, tuple(places), values)
    got = np.frombuffer(only, np.float32).reshape(shape)
    np.testing.assert_allclose(got, target, rtol=1e-4, atol=1e-2)


def test_operators_add_at_repeated_places_in_order():
    """CuPy's ``add.at`` adds as threads come, which other bits in every run show."""
    ops = Path(run_kernels.__file__).parents[1]
    lines = [line for path in ops.rglob("*.py") for line in path.read_text().splitlines()]
    atomic = [line.strip() for line in lines if ".add.at(" in line]
    assert sorted(atomic) == [
        "xp.add.at(counts, classes, 1)  # integers: in any order",
        "xp.add.at(target, places or (...,), values)",
    ]


def test_more_elements_than_a_kernel_has_threads_are_refused():
    rows, total = range(2**26), SimpleNamespace(shape=(2**26, 64))
    with pytest.raises(HpcdistError, match=r"67108864 rows of 64 .* have 4294967296 elements"):
        add_runs(MODULE, rows, None, None, total, False)


def test_no_rows_at_all():
    rows = SelectedRows(MODULE.zeros(0, np.int64), MODULE.zeros((0, 5), np.float32), 4)
    assert len(rows.merged().rows) == 0
    assert (rows.to_dense().get() == 0).all()


# -- NCCL ---------------------------------------------------------------------------------------
def test_the_nccl_that_pip_installed_is_loaded_whatever_its_version(monkeypatch, tmp_path):
    library = tmp_path / "nvidia/nccl/lib/libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    support_nccl.install(monkeypatch)
    happened, find = [], importlib.import_module

    def distribution(name):
        happened.append(name)
        return SimpleNamespace(locate_file=lambda path: tmp_path / path)

    def load(path, mode=0):
        assert mode == ctypes.RTLD_GLOBAL
        happened.append(path)

    def found(name):
        happened.append(name)
        return find(name)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    monkeypatch.setattr(importlib, "import_module", found)
    monkeypatch.setattr(ctypes, "CDLL", load)
    (alone,) = world(1)
    nccl_communicator.prepared(HostCollective(alone, LIMIT_S).group, 0, may_share=False)
    assert happened == ["cupy", "nvidia-nccl-cu12", str(library), "cupy.cuda.nccl"]


def test_kernels_of_the_stand_in_run_for_every_thread():
    assert isinstance(MODULE.zeros(1), DeviceArray) and isinstance(MACHINE.current(), Stream)
    out = MODULE.zeros(5, np.int64)

    @JIT.rawkernel()
    def count(x, n):
        i = JIT.grid(1)
        if i < n:
            x[i] = i

    count((1,), (32,), (out, np.int64(5)))
    assert out.get().tolist() == [0, 1, 2, 3, 4]


def test_torch_takes_an_array_of_a_gpu_as_it_is():
    array = MODULE.zeros(3)
    took = tensor_on(SimpleNamespace(from_dlpack=lambda given: ("tensor", given)), array)
    assert took[1] is array


def test_a_sparse_gradient_is_fetched():
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        word = fluid.data("word", [None, 1], "int64")
        table = fluid.ParamAttr("table")
        loss = fluid.layers.mean(fluid.embedding(word, [9, 2], True, param_attr=table))
        fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CUDAPlace(0))
    exe.run(startup, scope=scope)
    (found,) = exe.run(main, {"word": np.array([[3], [3]])}, ["table@GRAD"], scope=scope)
    assert found.rows.tolist() == [3, 3]
