"""Trains the days of a directory; kills a rank at a part:number of its call:delay:rank."""

import os
import signal
import sys
import threading
from pathlib import Path

import hpcdist as fluid
from hpcdist import online
from hpcdist.checkpoint import Saver, shrink_tables
from tests.support.online_days import DAYS, PASSES, dataset_of, network

HERE = Path(os.environ.get("HPCDIST_RANK", "0"))
beside = HERE.with_name(f"new.{HERE}")
beside.write_text(str(os.getpid()))
beside.rename(f"pid.{HERE}")
part, number, delay_s, victim = sys.argv[1].split(":") if len(sys.argv) > 1 else ("", 0, 0, 0)
calls = 0


def kill():
    os.kill(int(Path(f"pid.{victim}").read_text()), signal.SIGKILL)


def noted(name, call):
    def called(*args):
        global calls
        calls += name == part
        if name == part and calls == int(number):
            threading.Timer(float(delay_s), kill).start()
        return call(*args)

    return called


fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 5
variables, chance, loss = network()
fluid.optimizer.Adagrad(0.1).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
saver = Saver(exe, "saved", every=1, publish="published", publish_every=1)
saver.after_step = noted("save", saver.after_step)
saver.publish_base = noted("publish", saver.publish_base)
parts = online.of_dataset(exe, dataset_of(variables), chance, variables[-1])
online.train(
    "data",
    DAYS[0],
    online.Parts(*(noted(name, getattr(parts, name)) for name in ("load", "score", "train"))),
    saver,
    last=DAYS[-1],
    passes=PASSES,
    shrink=noted("shrink", shrink_tables),
    after_pass=noted("report", print),
)
exe.close()
