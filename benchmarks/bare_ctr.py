"""The network of ctr_train.py by hand: numpy, mpi4py and four numba loops, for this job alone.

    mpirun -n 4 python benchmarks/bare_ctr.py        # ranks 0, 1 train; ranks 2, 3 serve

What a step costs without a library: every distinct id of a batch goes to the server of its parity
once, for both tables; rows lie in one array that needs no index, because all ids are known; a
trainer sends the sum of a row's gradients, and of the dense parameters one half to each server; all
arrays are made before the first step. Nothing is checked, counted, recorded, or admitted. Rank 0
prints one JSON line: steps per second after the warm-up, and losses.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time

import numba
import numpy as np
from ctr_train import BATCH, HIDDEN, IDS, NUMBERS, SEED, SLOTS, WIDTH, batches, fluid, network
from mpi4py import MPI

TRAINERS, SERVERS, ROW, RATE = 2, 2, WIDTH + 1, 0.05
IDS_TAG, ROWS_TAG, GRADS_TAG, DENSE_TAG = range(4)
INPUT = NUMBERS + SLOTS * WIDTH
SIZES = (INPUT, *HIDDEN)
TOP = HIDDEN[-1] + SLOTS


@numba.njit(cache=True)
def divide(ids, seen, step, places, wanted, counts):
    """List the distinct ids by server; note where in its server's list each look-up stands."""
    counts[:] = 0
    for k in range(len(ids)):
        i = ids[k]
        if seen[i, 0] != step:
            server = i & 1
            seen[i, 0] = step
            seen[i, 1] = counts[server]
            wanted[server, counts[server]] = i >> 1
            counts[server] += 1
        places[k] = seen[i, 1]


@numba.njit(cache=True)
def spread(ids, places, rows, deep, wide):
    """Copy the rows that came to where the network reads them."""
    for b in range(deep.shape[0]):
        for s in range(wide.shape[1]):
            k = b * wide.shape[1] + s
            row = rows[ids[k] & 1, places[k]]
            begin = NUMBERS + s * WIDTH
            for j in range(WIDTH):
                deep[b, begin + j] = row[j]
            wide[b, s] = row[WIDTH]


@numba.njit(cache=True)
def gather(ids, places, counts, deep_grad, wide_grad, sums):
    """Add up the gradients of each distinct id's row."""
    for server in range(2):
        sums[server, : counts[server]] = 0
    for b in range(deep_grad.shape[0]):
        for s in range(wide_grad.shape[1]):
            k = b * wide_grad.shape[1] + s
            row = sums[ids[k] & 1, places[k]]
            begin = NUMBERS + s * WIDTH
            for j in range(WIDTH):
                row[j] += deep_grad[b, begin + j]
            row[WIDTH] += wide_grad[b, s]


@numba.njit(cache=True)
def descend(table, wanted, sums, rate):
    """Move the rows of a trainer's ids."""
    for k in range(len(wanted)):
        for j in range(table.shape[1]):
            table[wanted[k], j] -= rate * sums[k, j]


class Dense:
    """All dense values in one array, and views of it: weight and bias of each layer."""

    def __init__(self) -> None:
        shapes = [s for a, b in itertools.pairwise(SIZES) for s in ((a, b), (b,))]
        shapes += [(TOP, 2), (2,)]
        sizes = [int(np.prod(shape)) for shape in shapes]
        total = sum(sizes) + sum(sizes) % 2
        self.flat = np.zeros(total, "float32")
        ends = list(itertools.accumulate(sizes))
        self.views = [
            self.flat[end - size : end].reshape(shape)
            for shape, size, end in zip(shapes, sizes, ends)
        ]

    def half(self, server: int) -> np.ndarray:
        """Return what a server holds: a view."""
        middle = len(self.flat) // 2
        return self.flat[server * middle : (server + 1) * middle]


def initial(dense: Dense) -> None:
    """Take the values that ctr_train.py begins with, so that losses can be compared."""
    fluid.default_startup_program().random_seed = SEED
    network(distributed=True)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    named = [p.name for p in fluid.default_main_program().global_block().all_parameters()]
    found = [fluid.global_scope().find_var(n) for n in named if n not in ("deep", "wide")]
    for view, var in zip(dense.views, found, strict=True):
        view[:] = np.array(var.get_tensor())


class Network:
    """The arrays of a trainer's dense part, and its two passes."""

    def __init__(self) -> None:
        self.values, self.grads = Dense(), Dense()
        initial(self.values)
        self.outs = [np.empty((BATCH, width), "float32") for width in SIZES]
        self.back = [np.empty((BATCH, width), "float32") for width in SIZES]
        self.alive = [np.empty((BATCH, width), bool) for width in SIZES]
        self.top = np.empty((BATCH, TOP), "float32")
        self.top_back = np.empty((BATCH, TOP), "float32")
        self.wide = self.top[:, HIDDEN[-1] :]
        self.scores = np.empty((BATCH, 2), "float32")
        self.rows = np.arange(BATCH)

    def step(self, clicked: np.ndarray) -> float:
        """Return the loss; leave the gradients in ``grads``, ``back[0]`` and ``top_back``."""
        views, grads, last = self.values.views, self.grads.views, len(HIDDEN)
        for k in range(last):
            out = self.outs[k + 1]
            np.dot(self.outs[k], views[2 * k], out=out)
            np.add(out, views[2 * k + 1], out=out)
            np.maximum(out, 0, out=out)
        self.top[:, : HIDDEN[-1]] = self.outs[last]
        scores = self.scores
        np.dot(self.top, views[-2], out=scores)
        np.add(scores, views[-1], out=scores)
        np.subtract(scores, scores.max(1, keepdims=True), out=scores)
        np.exp(scores, out=scores)
        np.divide(scores, scores.sum(1, keepdims=True), out=scores)
        loss = -float(np.log(scores[self.rows, clicked]).mean())
        scores[self.rows, clicked] -= 1
        np.divide(scores, BATCH, out=scores)
        np.dot(self.top.T, scores, out=grads[-2])
        np.add.reduce(scores, axis=0, out=grads[-1])
        np.dot(scores, views[-2].T, out=self.top_back)
        self.back[last][:] = self.top_back[:, : HIDDEN[-1]]
        for k in range(last, 0, -1):
            back = self.back[k]
            np.greater(self.outs[k], 0, out=self.alive[k])
            np.multiply(back, self.alive[k], out=back)
            np.dot(self.outs[k - 1].T, back, out=grads[2 * k - 2])
            np.add.reduce(back, axis=0, out=grads[2 * k - 1])
            np.dot(back, views[2 * k - 2].T, out=self.back[k - 1])
        return loss


def train(comm: MPI.Comm, warmup: int, steps: int) -> None:
    """Be a trainer: ranks 0 to TRAINERS - 1."""
    network = Network()
    feeds = []
    for feed in batches(comm.rank, 50):
        ids = np.concatenate([feed[f"slot{s}"] for s in range(SLOTS)], axis=1).reshape(-1)
        feeds.append((ids, feed["numbers"], feed["clicked"].reshape(-1)))
    look_ups = BATCH * SLOTS
    seen = np.full((SLOTS * IDS, 2), -1, "int32")
    places = np.empty(look_ups, "int32")
    wanted = np.empty((SERVERS, look_ups), "int32")
    counts = np.empty(SERVERS, "int64")
    rows = np.empty((SERVERS, look_ups, ROW), "float32")
    sums = np.empty_like(rows)
    ranks = [TRAINERS + server for server in range(SERVERS)]
    losses = []
    begin = 0.0
    for step in range(warmup + steps):
        if step == warmup:
            begin = time.perf_counter()
        ids, numbers, clicked = feeds[step % len(feeds)]
        divide(ids, seen, step, places, wanted, counts)
        requests = []
        for server, rank in enumerate(ranks):
            requests.append(comm.Irecv(rows[server, : counts[server]], rank, ROWS_TAG))
            requests.append(comm.Isend(wanted[server, : counts[server]], rank, IDS_TAG))
        network.outs[0][:, :NUMBERS] = numbers
        MPI.Request.Waitall(requests)
        spread(ids, places, rows, network.outs[0], network.wide)
        losses.append(network.step(clicked))
        wide_back = network.top_back[:, HIDDEN[-1] :]
        gather(ids, places, counts, network.back[0], wide_back, sums)
        requests = []
        for server, rank in enumerate(ranks):
            requests.append(comm.Irecv(network.values.half(server), rank, DENSE_TAG))
            requests.append(comm.Isend(sums[server, : counts[server]], rank, GRADS_TAG))
            requests.append(comm.Isend(network.grads.half(server), rank, DENSE_TAG))
        MPI.Request.Waitall(requests)
    elapsed = time.perf_counter() - begin
    if comm.rank == 0:
        print(json.dumps({"steps_per_s": steps / elapsed, "losses": losses[:50]}), flush=True)


def serve(comm: MPI.Comm, steps: int) -> None:
    """Be a server: trainers are answered, and their gradients added, in their order."""
    server = comm.rank - TRAINERS
    table = np.full((SLOTS * IDS // SERVERS, ROW), 0.01, "float32")
    dense = Dense()
    initial(dense)
    value = dense.half(server)
    grads = [np.empty_like(value) for _ in range(TRAINERS)]
    wanted = np.empty((TRAINERS, BATCH * SLOTS), "int32")
    rows = np.empty((TRAINERS, BATCH * SLOTS, ROW), "float32")
    sums = np.empty_like(rows)
    counts = [0] * TRAINERS
    row_rate, rate = np.float32(RATE / TRAINERS), np.float32(RATE / TRAINERS)
    status = MPI.Status()
    for _ in range(steps):
        sends = []
        for trainer in range(TRAINERS):
            comm.Recv(wanted[trainer], trainer, IDS_TAG, status)
            count = counts[trainer] = status.Get_count(MPI.INT32_T)
            np.take(table, wanted[trainer, :count], axis=0, out=rows[trainer, :count], mode="clip")
            sends.append(comm.Isend(rows[trainer, :count], trainer, ROWS_TAG))
        receives = [
            comm.Irecv(buffer, trainer, tag)
            for trainer in range(TRAINERS)
            for buffer, tag in ((sums[trainer], GRADS_TAG), (grads[trainer], DENSE_TAG))
        ]
        MPI.Request.Waitall(sends + receives)
        total = grads[0]
        for grad in grads[1:]:
            np.add(total, grad, out=total)
        np.multiply(total, rate, out=total)
        np.subtract(value, total, out=value)
        sends = [comm.Isend(value, trainer, DENSE_TAG) for trainer in range(TRAINERS)]
        for trainer, count in enumerate(counts):
            descend(table, wanted[trainer, :count], sums[trainer, :count], row_rate)
        MPI.Request.Waitall(sends)


def main() -> None:
    """Train or serve, by rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--warmup", type=int, default=20)
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    if comm.size != TRAINERS + SERVERS:
        raise SystemExit(f"expected {TRAINERS + SERVERS} ranks, got {comm.size}: use mpirun -n 4")
    if comm.rank < TRAINERS:
        train(comm, options.warmup, options.steps)
    else:
        serve(comm, options.warmup + options.steps)


if __name__ == "__main__":
    main()
