"""The same training by hand: plain numpy and mpi4py, as one would write it for this job alone.

    mpirun -n 4 python benchmarks/bare_mpi.py --case mlp        # ranks 0, 1 train; ranks 2, 3 serve

It moves the bytes that the transpiled job moves, between the same ranks: each parameter of 8192
elements or more is cut into two blocks of rows, the blocks go round robin to the servers, every
trainer sends its gradient of a block and gets the updated block back. Persistent requests; a
gradient leaves as soon as it exists; parameters arrive in place; no message is pickled. With
``--asynchronous`` a server applies each gradient when it comes and answers its sender. Rank 0
prints one JSON line: steps per second after the warm-up, and losses.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass

import numpy as np
from cases import CASES, Case, batches, layer_shapes
from mpi4py import MPI

TRAINERS, SERVERS = 2, 2
MIN_BLOCK_SIZE = 8192


@dataclass(frozen=True)
class Block:
    """Rows ``begin:end`` of one parameter, and the rank that serves them; ``tag`` counts blocks."""

    layer: int
    kind: str
    begin: int
    end: int
    width: int
    rank: int
    tag: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the block: a bias is a vector."""
        rows = self.end - self.begin
        return (rows,) if self.kind == "bias" else (rows, self.width)


def place(case: Case) -> list[Block]:
    """Cut the parameters as Fluid's transpiler does; return the blocks, the first layer's first."""
    blocks: list[Block] = []
    for layer, (rows, width) in enumerate(layer_shapes(case)):
        for kind, length, row in (("bias", width, 1), ("weight", rows, width)):
            cuts = min(SERVERS, max(1, length * row // MIN_BLOCK_SIZE))
            step = math.ceil(length / cuts)
            for begin in range(0, length, step):
                end = min(begin + step, length)
                rank = TRAINERS + len(blocks) % SERVERS
                blocks.append(Block(layer, kind, begin, end, row, rank, len(blocks)))
    return blocks


class Layer:
    """One fully connected layer of a trainer: parameters, gradients, results, all preallocated."""

    def __init__(self, shape: tuple[int, int], case: Case) -> None:
        rows, width = shape
        self.weight = np.full(shape, case.weight, "float32")
        self.bias = np.zeros(width, "float32")
        self.weight_grad = np.empty_like(self.weight)
        self.bias_grad = np.empty_like(self.bias)
        self.out = np.empty((case.batch, width), "float32")
        self.in_grad = np.empty((case.batch, rows), "float32")
        self.alive = np.empty((case.batch, width), bool)
        self.requests: list[MPI.Prequest] = []

    def part(self, block: Block, grad: bool) -> np.ndarray:
        """Return the rows of a block, of the parameter or of its gradient: a view."""
        name = block.kind + ("_grad" if grad else "")
        return getattr(self, name)[block.begin : block.end]


def train(comm: MPI.Comm, case: Case, warmup: int, steps: int) -> None:
    """Be a trainer: ranks 0 to TRAINERS - 1."""
    layers = [Layer(shape, case) for shape in layer_shapes(case)]
    receives = []
    for block in place(case):
        layer = layers[block.layer]
        layer.requests.append(comm.Send_init(layer.part(block, True), block.rank, block.tag))
        receives.append(comm.Recv_init(layer.part(block, False), block.rank, block.tag))
    messages = [request for layer in layers for request in layer.requests] + receives
    pairs = batches(case, comm.rank)
    difference = np.empty((case.batch, 1), "float32")
    losses = np.empty(warmup + steps)
    begin = 0.0
    for step in range(warmup + steps):
        if step == warmup:
            begin = time.perf_counter()
        x, y = pairs[step % len(pairs)]
        hidden = x
        for layer in layers:
            np.dot(hidden, layer.weight, out=layer.out)
            np.add(layer.out, layer.bias, out=layer.out)
            if layer is not layers[-1]:
                np.maximum(layer.out, 0, out=layer.out)
            hidden = layer.out
        np.subtract(hidden, y, out=difference)
        losses[step] = np.vdot(difference, difference) / case.batch
        MPI.Prequest.Startall(receives)
        grad = np.multiply(difference, 2 / case.batch, out=difference)
        for index in range(len(layers) - 1, -1, -1):
            layer = layers[index]
            if index < len(layers) - 1:
                np.greater(layer.out, 0, out=layer.alive)
                np.multiply(grad, layer.alive, out=grad)
            # Before the weight's gradient is sent: the answer overwrites the weight.
            if index:
                np.dot(grad, layer.weight.T, out=layer.in_grad)
            np.add.reduce(grad, axis=0, out=layer.bias_grad)
            np.dot((layers[index - 1].out if index else x).T, grad, out=layer.weight_grad)
            MPI.Prequest.Startall(layer.requests)
            grad = layer.in_grad
        MPI.Request.Waitall(messages)
    elapsed = time.perf_counter() - begin
    if comm.rank == 0:
        print(
            json.dumps({"steps_per_s": steps / elapsed, "losses": losses[:50].tolist()}), flush=True
        )


def serve(comm: MPI.Comm, case: Case, steps: int) -> None:
    """Be a server: the ranks after the trainers. Sums run in trainer order."""
    work = []
    for block in reversed([b for b in place(case) if b.rank == comm.rank]):
        initial = 0.0 if block.kind == "bias" else case.weight
        value = np.full(block.shape, initial, "float32")
        grads = [np.empty_like(value) for _ in range(TRAINERS)]
        receives = [comm.Recv_init(g, t, block.tag) for t, g in enumerate(grads)]
        sends = [comm.Send_init(value, t, block.tag) for t in range(TRAINERS)]
        work.append((value, grads, receives, sends))
        MPI.Prequest.Startall(receives)
    scale = np.float32(case.learning_rate / TRAINERS)
    for step in range(steps):
        for value, (total, *others), receives, sends in work:
            MPI.Request.Waitall(receives)
            for grad in others:
                np.add(total, grad, out=total)
            np.multiply(total, scale, out=total)
            np.subtract(value, total, out=value)
            MPI.Prequest.Startall(sends)
            if step + 1 < steps:
                MPI.Prequest.Startall(receives)
        for *_, sends in work:
            MPI.Request.Waitall(sends)


def serve_each(comm: MPI.Comm, case: Case, steps: int) -> None:
    """Be an asynchronous server: every gradient is applied by itself, undivided."""
    rate = np.float32(case.learning_rate)
    values, grads, receives, sends = [], [], [], []
    for block in [b for b in place(case) if b.rank == comm.rank]:
        initial = 0.0 if block.kind == "bias" else case.weight
        value = np.full(block.shape, initial, "float32")
        for trainer in range(TRAINERS):
            grad, answer = np.empty_like(value), np.empty_like(value)
            values.append((value, answer))
            grads.append(grad)
            receives.append(comm.Recv_init(grad, trainer, block.tag))
            sends.append(comm.Send_init(answer, trainer, block.tag))
    left = [steps] * len(receives)
    MPI.Prequest.Startall(receives)
    while any(left):
        for i in MPI.Request.Waitsome(receives) or []:
            sends[i].Wait()
            value, answer = values[i]
            np.multiply(grads[i], rate, out=grads[i])
            np.subtract(value, grads[i], out=value)
            np.copyto(answer, value)
            left[i] -= 1
            if left[i]:
                receives[i].Start()
            sends[i].Start()
    MPI.Request.Waitall(sends)


def main() -> None:
    """Train or serve, by rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=sorted(CASES), default="linreg")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--asynchronous", action="store_true")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    if comm.size != TRAINERS + SERVERS:
        raise SystemExit(f"expected {TRAINERS + SERVERS} ranks, got {comm.size}: use mpirun -n 4")
    case = CASES[options.case]
    if comm.rank < TRAINERS:
        train(comm, case, options.warmup, options.steps)
    else:
        run = serve_each if options.asynchronous else serve
        run(comm, case, options.warmup + options.steps)


if __name__ == "__main__":
    main()
