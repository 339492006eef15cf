"""Goes on where its latest checkpoint says; dropout and a shuffled reader make each step count.

Start N of a job for which there is a file stop.N does not come to its end: it makes some steps,
and waits to be warned or killed.
"""

import os
import time

import numpy as np

import hpcdist as fluid
from hpcdist import checkpoint
from hpcdist.checkpoint import preemption

x = fluid.data(name="x", shape=[None, 4], dtype="float32")
y = fluid.data(name="y", shape=[None, 1], dtype="float32")
hidden = fluid.layers.dropout(fluid.layers.fc(x, size=16, act="relu"), 0.3)
loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, size=1), y))
fluid.optimizer.Adam(fluid.layers.exponential_decay(0.01, 10, 0.9)).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
rows = np.random.RandomState(3).rand(240, 5).astype("float32")
reader = checkpoint.resumable(fluid.batch(fluid.reader.shuffle(lambda: iter(rows), 100), 24))
saver = checkpoint.Saver(exe, "checkpoints", every=10, reader=reader)
saver.restore()
value = [float("nan")]
stops = os.path.exists(f"stop.{os.environ.get('SLURM_RESTART_COUNT', '0')}")
last = saver.step + 12
while reader.epoch < int(os.environ["EPOCHS"]):
    for batch in reader():
        part = np.stack(batch)
        (value,) = exe.run(feed={"x": part[:, :4], "y": part[:, 4:]}, fetch_list=[loss])
        with open(f"step.{os.environ['HPCDIST_RANK']}", "w") as file:
            file.write(str(saver.step))
        time.sleep(0.02)
        while stops and saver.step == last and not preemption.warned():
            time.sleep(0.02)
        saver.after_step()
exe.close()
print("host", os.uname().nodename, "loss", float(value[0]).hex())
