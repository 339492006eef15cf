import os, sys, time
import numpy as np
import hpcdist as fluid

RANK = int(os.environ.get("HPCDIST_RANK", "0"))


def note(what, value):  # whole or not at all: this rank may be killed meanwhile
    with open(f"new.{what}.{RANK}.{os.getpid()}", "w") as f:
        f.write(str(value))
    os.replace(f.name, f"{what}.{RANK}")


note("pid", os.getpid())
x = fluid.data(name="x", shape=[None, 4], dtype="float32")
y = fluid.data(name="y", shape=[None, 1], dtype="float32")
loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, size=1), y))
fluid.optimizer.SGD(0.01).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
rows = np.random.RandomState(3).rand(8, 5).astype("float32")


def train(steps, every_s=0.0):
    for step in range(steps):
        value = exe.run(feed={"x": rows[:, :4], "y": rows[:, 4:]}, fetch_list=[loss])[0]
        note("step", step)
        time.sleep(every_s)
    return float(value[0])
