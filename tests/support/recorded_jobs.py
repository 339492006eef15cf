"""Recordings of jobs that never ran: events with chosen times, and what is told of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

import hpcdist as fluid
from hpcdist.base.trace import summary
from hpcdist.base.trace.advice import advise
from hpcdist.base.trace.events import EVENT, Cause, EventKind
from hpcdist.base.trace.files import RankOfJob, RankRecording
from hpcdist.base.trace.programs import Moved
from hpcdist.base.trace.recorder import Recording
from hpcdist.executor.described import described

STEPS = 120
US = 1000  # nanoseconds
BYTES = 2**18


class Rank:
    """Notes events of one rank, as the recorder would."""

    def __init__(self, rank, role, index):
        self.of = RankOfJob(rank, role, index, f"n{rank}", 100 + rank)
        self.names, self.rows = [], []

    def note(self, kind, name, begin_us, end_us, value=0.0, peer=-1, step=0):
        if name not in self.names:
            self.names.append(name)
        row = (int(begin_us * US), int(end_us * US), value, 1, self.names.index(name))
        self.rows.append((*row, peer, step, kind))

    def recording(self, of=None, programs=()):
        events = np.array(self.rows, EVENT)
        recording = Recording(events, tuple(self.names), len(events), programs)
        return RankRecording(of or self.of, recording)


def job(
    busy_us=(600, 600, 600),
    reader_us=0,
    script_us=0,
    applied=(BYTES, BYTES),
    save_us=0,
    gc_us=0,
    late_us=(0, 0),
    grows=(),
    stall_us=0,
):
    """A synchronous job of 3 trainers and 2 servers, in steps as long as its slowest trainer's.

    A trainer computes, sends a packet to each server, and waits for both to answer. ``late_us``:
    how long packets are under way to each server; ``grows``: the MiB of trainer 1, in parts of the
    job; ``stall_us``: what trainer 2 is busy longer in every 20th step.
    """
    trainers = [Rank(k, "TRAINER", k) for k in range(3)]
    servers = [Rank(3 + k, "PSERVER", k) for k in range(2)]
    now = 0.0
    for step in range(1, STEPS + 1):
        begin = now + reader_us + script_us
        sent = [begin + busy for busy in busy_us]
        sent[2] += stall_us * (step % 20 == 0)
        come = max(sent) + 20 + max(late_us)
        for k, trainer in enumerate(trainers):
            if reader_us:
                trainer.note(EventKind.WAIT, Cause.READER.value, now, now + reader_us)
            trainer.note(EventKind.OPERATOR, "mul", begin, sent[k] - 4, step=step)
            for s in range(2):
                packet = ("w@GRAD", sent[k] - 4 + s, sent[k] - 3 + s, applied[s])
                trainer.note(EventKind.SENT, *packet, peer=3 + s, step=step)
            done = come + 60
            trainer.note(EventKind.WAIT, Cause.PARAMETERS.value, sent[k], done)
            for s in range(2):
                trainer.note(EventKind.RECEIVED, "w", done + s, done + s + 1, BYTES, 3 + s, step)
            trainer.note(EventKind.STEP, "step", begin, done + 5, step=step)
            if k == 1 and grows and not step % (STEPS // len(grows)):
                held = grows[step // (STEPS // len(grows)) - 1] * 2**20
                trainer.note(EventKind.MEMORY, "memory", done, done, held)
            trainer.note(EventKind.VALUE, "loss", done, done, 1 / step, step=step)
            if save_us and step % 20 == 0:
                trainer.note(EventKind.CHECKPOINT, "save", begin, begin + save_us)
            if gc_us and k == 1:
                trainer.note(EventKind.GARBAGE, "garbage collection", begin, begin + gc_us, 2)
        for s, server in enumerate(servers):
            at = now
            for k in sorted(range(3), key=lambda k: sent[k]):
                comes = max(at, sent[k] + 8 + late_us[s])
                if comes > at:
                    server.note(EventKind.WAIT, Cause.GRADIENTS.value, at, comes)
                at = comes + 1
                server.note(EventKind.RECEIVED, "w@GRAD", comes, at, applied[s], k, step)
            server.note(EventKind.APPLIED, "w@GRAD", come - 5, come + 20, applied[s], step=step)
            for k in range(3):
                server.note(EventKind.SENT, "w", come + 21 + k, come + 22 + k, BYTES, k, step)
        now = come + 66
    trains, serves = programs()
    return [
        *(trainer.recording(programs=(trains,)) for trainer in trainers),
        *(server.recording(programs=(serves,)) for server in servers),
    ]


@cache
def programs():
    """What trainers and servers of a small job run."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x = fluid.data("x", [None, 3])
        hidden = fluid.layers.fc(x, 300, act="relu")
        loss = fluid.layers.mean(fluid.layers.fc(hidden, 1))
        fluid.optimizer.SGD(0.1).minimize(loss)
        t = fluid.DistributeTranspiler()
        t.transpile(0, pservers="a:1,b:1", trainers=3)
        trains = replace(described(t.get_trainer_program()), moved=(Moved("mul", 2, 2**21),))
        return trains, described(t.get_pserver_program("a:1"))


def told(found):
    ranks = [summary.summarize(rank) for rank in found]
    return [(advice.cause, advice.rank) for advice in advise(found, ranks)]
