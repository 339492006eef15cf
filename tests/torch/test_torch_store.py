"""torch's store over MPI: what TCPStore does, with the keys on rank 0."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import torch.distributed as dist  # noqa: E402
from torch.distributed.constants import default_pg_timeout  # noqa: E402

from hpcdist.comm.loopback import world  # noqa: E402
from hpcdist.errors import CommError  # noqa: E402
from hpcdist.torch.store import Keeper, MpiStore, StoreTimeout  # noqa: E402
from tests.support.threads import run_threads  # noqa: E402


def run_stores(size, body):
    """Run ``body(rank, store)`` on ranks that are threads, the store within torch's PrefixStore."""
    transports = world(size)
    keeper = Keeper(transports[0])

    def with_store(t):
        store = MpiStore(t, keeper if t.rank == 0 else None, 60.0)
        body(t.rank, dist.PrefixStore("p", store))

    try:
        run_threads([partial(with_store, t) for t in transports])
    finally:
        keeper.close()


def test_keys_are_seen_by_all():
    def body(rank, store):
        store.set(f"key{rank}", f"value{rank}\n")
        assert store.get(f"key{1 - rank}") == f"value{1 - rank}\n".encode()
        store.wait(["key0", "key1"])
        assert store.check(["key0", "key1"])
        assert not store.check(["key0", "key7"])
        assert store.multi_get(["key1", "key0"]) == [b"value1\n", b"value0\n"]

    run_stores(2, body)


def test_numbers_are_added_by_one_rank_after_another():
    totals = []

    def body(rank, store):
        totals.append(store.add("sum", 2))
        totals.append(store.add("sum", -1))

    run_stores(3, body)
    assert len(totals) == 6
    assert max(totals) <= 6
    assert 3 in totals


def test_bytes_of_all_values_come_back():
    def body(rank, store):
        base = store.underlying_store
        data = bytes(range(256))
        base.set("data", data)
        base.append("data", b"\xff!")
        assert base.get("data") == data + b"\xff!"
        base.multi_set(["a", "b"], [b"1", "2"])
        assert base.multi_get(["b", "a"]) == [b"2", b"1"]
        assert base.num_keys() == 3
        assert sorted(base.list_keys()) == ["a", "b", "data"]
        assert base.delete_key("a")
        assert not base.delete_key("a")

    run_stores(1, body)


def test_compare_set_as_tcp_store_does():
    def body(rank, store):
        assert store.compare_set("k", "expected", "new") == b"expected"  # there is no such key
        assert not store.check(["k"])
        assert store.compare_set("k", "", "first") == b"first"
        assert store.compare_set("k", "other", "second") == b"first"
        assert store.compare_set("k", "first", "second") == b"second"

    run_stores(1, body)


@pytest.mark.parametrize("asker", [0, 1])
def test_a_request_that_does_not_fit_is_refused_and_others_are_answered(asker):
    def body(rank, store):
        base = store.underlying_store
        if rank == asker:
            base.set("text", "abc")
            with pytest.raises(CommError, match=rf"rank {rank}: the store's add\('text', 1\)"):
                base.add("text", 1)
            with pytest.raises(CommError, match="multi_set"):
                base.multi_set(["a", "b"], ["1"])
            assert not base.check(["a"])
            for call, words in (
                (lambda: base.set("five", 5), "text or bytes as a value, got 5"),
                (lambda: base.set(5, "five"), "text as a key, got 5"),
                (lambda: base.check("five"), "a list of keys, got 'five'"),
                (lambda: base.add("five", 0.5), "float"),
            ):
                with pytest.raises(TypeError, match=words):
                    call()
            base.set(b"ended", "")
        base.wait(["ended"])
        base.add("came", 1)
        while base.add("came", 0) < 2:
            pass

    run_stores(2, body)


def test_a_request_that_waits_keeps_its_tag(monkeypatch):
    monkeypatch.setattr("hpcdist.torch.store.ANSWER_TAGS", 2)

    def body(rank, store):
        base = store.underlying_store
        if rank == 0:
            base.wait(["asked"])
            base.set("late", "42")
            base.wait(["ended"])
            return
        found = []
        waiting = threading.Thread(target=lambda: found.append(base.get("late")))
        waiting.start()
        for _ in range(9):
            assert not base.check(["never"])
        base.set("asked", "")
        waiting.join(60)
        assert found == [b"42"]
        base.set("ended", "")

    run_stores(2, body)


def test_queues():
    def body(rank, store):
        base = store.underlying_store
        if rank:
            assert base.queue_pop("q") == b"first"  # waits for it
            assert base.queue_pop("q", block=True) == b"second"
            base.set("popped", "")
        else:
            base.queue_push("q", "first")
            base.queue_push("q", b"second")
            base.wait(["popped"])
            assert base.queue_len("q") == 0
            assert not base.check(["q"])
            base.queue_push("full", "")
            assert base.check(["full", "popped"])
            base.wait(["full"])
            with pytest.raises(dist.QueueEmptyError, match="queue 'q' is empty"):
                base.queue_pop("q", block=False)

    run_stores(2, body)


@pytest.mark.parametrize("asker", [0, 1])
def test_what_does_not_come_in_time_is_named(asker):
    def body(rank, store):
        if rank == asker:
            soon = timedelta(milliseconds=20)
            with pytest.raises(
                dist.DistStoreError, match=r"has no 'p/nothing' after 0.02 s.* timeout"
            ):
                store.wait(["nothing"], soon)
            store.set_timeout(soon)
            with pytest.raises(TimeoutError, match=r"'p/nothing'"):
                store.get("nothing")
            store.set("ended", "")
        else:
            store.wait(["ended"], timedelta(seconds=60))

    run_stores(2, body)


def test_threads_of_a_rank_ask_side_by_side():
    def body(rank, store):
        if rank == 0:
            store.wait(["asked"], timedelta(seconds=60))
            store.set("answer", "42")
            return
        found = []
        waiting = threading.Thread(target=lambda: found.append(store.get("answer")))
        waiting.start()
        store.set("asked", "")  # while the other thread waits
        waiting.join(60)
        assert found == [b"42"]

    run_stores(2, body)


def test_a_store_whose_messages_fail_says_so(monkeypatch):
    uncaught = []
    monkeypatch.setattr(threading, "excepthook", uncaught.append)
    failed = threading.Event()

    def fail(*_):
        failed.set()
        raise RuntimeError("MPI_ERR_PROC_FAILED: Process Failure")

    transport = world(2)[0]
    monkeypatch.setattr(transport, "iprobe", fail)
    keeper = Keeper(transport)
    store = MpiStore(transport, keeper, 60.0)
    assert failed.wait(60)
    keeper.close()
    with pytest.raises(CommError, match="the store on rank 0 has ended: MPI_ERR_PROC_FAILED"):
        store.set("key", "value")
    assert not uncaught


def test_a_wait_without_a_time_out_has_the_deadline_and_names_the_others():
    transports = world(3)
    keeper = Keeper(transports[0])
    store = MpiStore(transports[0], keeper, 0.05)
    for timeout in (None, default_pg_timeout):  # as a store is made, as init_process_group sets it
        if timeout is not None:
            store.set_timeout(timeout)
        with pytest.raises(StoreTimeout, match="no 'never' after 0.05 s") as late:
            store.get("never")
        assert late.value.missing == (1, 2)
    keeper.close()
