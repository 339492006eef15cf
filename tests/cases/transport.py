"""What every transport must do: one class, inherited by the tests of each kind of transport."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from hpcdist.comm.base import ANY, Transport
from hpcdist.errors import CommError, DeadlineError

Body = Callable[[Transport], None]
LIMIT_S = 60  # for what comes at once, unless the machine is busy


def nothing() -> str:
    return "a test waiting"


class TransportTests:
    """Cases over worlds of 1 to 4 ranks; a subclass says how a body runs on every rank."""

    def run(self, size: int, body: Body) -> None:
        """Run ``body`` on each of ``size`` ranks; raise if it raised on any of them."""
        raise NotImplementedError

    @pytest.mark.parametrize("size", [1, 2, 3, 4])
    def test_ring_of_one_shot_messages(self, size: int) -> None:
        def body(t: Transport) -> None:
            right, left = (t.rank + 1) % size, (t.rank - 1) % size
            got = np.zeros(5)
            requests = [t.irecv(got, left, 7), t.isend(np.full(5, t.rank + 0.5), right, 7)]
            t.wait_all(requests, nothing, LIMIT_S)
            assert (got == left + 0.5).all()

        self.run(size, body)

    @pytest.mark.parametrize("nbytes", [8, 5000, 3_000_000])
    def test_persistent_messages_repeat(self, nbytes: int) -> None:
        def body(t: Transport) -> None:
            peer = 1 - t.rank
            out, into = np.zeros(nbytes // 8), np.zeros(nbytes // 8)
            requests = [t.recv_init(into, peer, 3), t.send_init(out, peer, 3)]
            start = t.starter(requests)
            wait = t.waiter_all(requests, nothing, LIMIT_S)
            for step in range(4):
                out[:] = 10 * step + t.rank
                if step % 2:
                    start()
                    wait()
                else:
                    t.start(requests)
                    t.wait_all(requests, nothing, LIMIT_S)
                assert (into == 10 * step + peer).all()
            t.release(requests)

        self.run(2, body)

    def test_messages_of_one_tag_keep_their_order_and_tags_do_not_mix(self) -> None:
        def body(t: Transport) -> None:
            if t.rank == 0:
                sent = [t.isend(np.array([i]), 1, i % 2) for i in range(6)]
                t.wait_all(sent, nothing, LIMIT_S)
            else:
                odd, even = np.zeros((3, 1), int), np.zeros((3, 1), int)
                for into, tag in ((odd, 1), (even, 0)):
                    t.wait_all([t.irecv(row, 0, tag) for row in into], nothing, LIMIT_S)
                assert odd.ravel().tolist() == [1, 3, 5]
                assert even.ravel().tolist() == [0, 2, 4]

        self.run(2, body)

    def test_wait_some_reports_each_end_once(self) -> None:
        def body(t: Transport) -> None:
            if t.rank:
                t.wait_all([t.isend(np.array([t.rank]), 0, 5)], nothing, LIMIT_S)
                return
            into = np.zeros((3, 1), int)
            requests = [t.recv_init(into[k - 1], k, 5) for k in (1, 2, 3)]
            t.start(requests)
            seen: list[int] = []
            while len(seen) < 3:
                seen += t.waiter_some(requests, nothing, LIMIT_S)()
            assert sorted(seen) == [0, 1, 2]
            assert into.ravel().tolist() == [1, 2, 3]
            assert t.test_all(requests)
            t.release(requests)

        self.run(4, body)

    def test_progress_for_nothing_is_an_error(self) -> None:
        def body(t: Transport) -> None:
            request = t.recv_init(np.zeros(1), 0, 1)
            with pytest.raises(CommError, match="none of the requests has been started"):
                t.waiter_some([request], nothing, LIMIT_S)()
            t.release([request])

        self.run(1, body)

    def test_deadline_names_what_was_waited_for(self) -> None:
        def body(t: Transport) -> None:
            request = t.recv_init(np.zeros(1), (t.rank + 1) % 2, 9)
            t.start([request])
            begin = time.monotonic()
            with pytest.raises(DeadlineError, match=r"trainer 3 waiting for w.*within 0\.1 s"):
                t.wait_all([request], lambda: "trainer 3 waiting for w", 0.1)
            with pytest.raises(DeadlineError, match="rpc_deadline"):
                t.waiter_some([request], nothing, 0.1)()
            assert 0.2 <= time.monotonic() - begin < LIMIT_S
            t.barrier()
            t.release([request])  # cancels the receive: a later one with its tag gets the message
            t.barrier()
            got = np.zeros(1)
            peer = 1 - t.rank
            requests = [t.irecv(got, peer, 9), t.isend(np.ones(1), peer, 9)]
            t.wait_all(requests, nothing, LIMIT_S)
            assert got == 1

        self.run(2, body)

    def test_truncated_message_is_an_error(self) -> None:
        def body(t: Transport) -> None:
            if t.rank == 0:
                t.wait_all([t.isend(np.zeros(4), 1, 2)], nothing, LIMIT_S)
            else:
                with pytest.raises(CommError, match=r"a test|trunc"):
                    t.wait_all([t.irecv(np.zeros(2), 0, 2)], nothing, LIMIT_S)

        self.run(2, body)

    def test_probe(self) -> None:
        def body(t: Transport) -> None:
            t.barrier()
            if t.rank == 0:
                assert t.iprobe(ANY, 99) is None
                found = None
                while found is None:
                    found = t.iprobe(ANY, 4)
                assert found == (1, 24)
                assert t.iprobe(1, 4) == (1, 24)
                into = np.zeros(3)
                t.wait_all([t.irecv(into, 1, 4)], nothing, LIMIT_S)
                assert t.iprobe(1, 4) is None
            else:
                t.wait_all([t.isend(np.ones(3), 0, 4)], nothing, LIMIT_S)

        self.run(2, body)

    @pytest.mark.parametrize("size", [1, 2, 3, 4])
    def test_collectives(self, size: int) -> None:
        def body(t: Transport) -> None:
            t.barrier()
            assert t.allgather_bytes(b"x" * t.rank) == [b"x" * k for k in range(size)]
            root = size - 1
            assert t.broadcast_bytes(b"abc" if t.rank == root else None, root) == b"abc"
            assert t.broadcast_bytes(b"", 0) == b""
            array = np.full((2, 3), t.rank, np.float32)
            t.broadcast(array, root)
            assert (array == root).all()

        self.run(size, body)

    def test_split_makes_worlds_that_do_not_hear_each_other(self) -> None:
        def body(t: Transport) -> None:
            part = t.split(t.rank % 2, -t.rank)
            assert (part.rank, part.size) == (1 - t.rank // 2, 2)
            names = part.allgather_bytes(str(t.rank).encode())
            assert names == ([b"2", b"0"] if t.rank % 2 == 0 else [b"3", b"1"])
            into = np.zeros(1, int)
            peer = 1 - part.rank
            requests = [part.irecv(into, peer, 1), part.isend(np.array([t.rank]), peer, 1)]
            part.wait_all(requests, nothing, LIMIT_S)
            assert into == (t.rank + 2) % 4

        self.run(4, body)

    def test_subsets_are_made_by_their_ranks_alone(self) -> None:
        def body(t: Transport) -> None:
            if t.rank == 1:
                return
            part = t.subset([2, 0], 5)
            assert (part.rank, part.size) == (0 if t.rank == 2 else 1, 2)
            into = np.zeros(3, int)
            request = part.irecv(into, 1 - part.rank, part.most_tag)
            send = part.isend(np.array([t.rank, 7]), 1 - part.rank, part.most_tag)
            came: list[int] = []

            def poll() -> bool:
                if not came and (nbytes := part.arrival(request)) is not None:
                    came.append(nbytes)
                return bool(came) and part.test_all([send])

            part.waiter(poll, nothing, LIMIT_S)()
            assert came == [16]
            assert into[0] == 2 - t.rank

        self.run(3, body)

    def test_what_cannot_be_a_message_is_refused(self) -> None:
        def body(t: Transport) -> None:
            with pytest.raises(CommError, match=r"C-contiguous.*strides"):
                t.send_init(np.zeros((4, 4))[:, :2], 0, 1)
            with pytest.raises(CommError, match="python objects"):
                t.isend(np.array([None]), 0, 1)
            with pytest.raises(CommError, match="numpy array, got list"):
                t.isend([1.0], 0, 1)  # type: ignore[arg-type]
            fixed = np.zeros(2)
            fixed.flags.writeable = False
            with pytest.raises(CommError, match="read-only"):
                t.irecv(fixed, 0, 1)
            with pytest.raises(CommError, match="no rank 7 in a world of 1"):
                t.isend(np.zeros(2), 7, 1)
            with pytest.raises(CommError, match="must give its data"):
                t.broadcast_bytes(None, 0)

        self.run(1, body)
