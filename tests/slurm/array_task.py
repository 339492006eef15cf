"""A task of a job array: notes each of its starts; the last task stops at its first one."""

import os
import sys
import time
from pathlib import Path

import numpy as np

import hpcdist as fluid

task, start = os.environ["SLURM_ARRAY_TASK_ID"], os.environ.get("SLURM_RESTART_COUNT", "0")
Path(f"task.{task}.start.{start}").touch()
x = fluid.data(name="x", shape=[None, 4], dtype="float32")
loss = fluid.layers.mean(fluid.layers.fc(x, size=1))
fluid.optimizer.SGD(0.1).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
exe.run(feed={"x": np.ones((2, 4), "float32")}, fetch_list=[loss])
exe.close()
if task == os.environ["SLURM_ARRAY_TASK_MAX"] and start == "0":
    while not all(Path(f"task.{k}.done").exists() for k in range(int(task))):
        time.sleep(0.1)
    sys.exit(75)
Path(f"task.{task}.done").touch()
