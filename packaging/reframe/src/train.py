"""Train a small network on generated rows; print its last loss and the steps per second."""

import time

import numpy as np

import hpcdist as fluid

STEPS, WARM = 400, 50

x = fluid.data("x", [None, 13])
y = fluid.data("y", [None, 1])
hidden = fluid.layers.fc(x, 32, act="tanh", param_attr=fluid.initializer.Xavier(seed=1))
guess = fluid.layers.fc(hidden, 1, param_attr=fluid.initializer.Xavier(seed=2))
loss = fluid.layers.mean(fluid.layers.square_error_cost(guess, y))
fluid.optimizer.SGD(0.05).minimize(loss)

exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
random = np.random.RandomState(0)
weights = random.randn(13, 1)
for step in range(STEPS):
    if step == WARM:
        begun = time.perf_counter()
    rows = random.randn(32, 13).astype("float32")
    fed = {"x": rows, "y": np.tanh(rows @ weights).astype("float32")}
    (value,) = exe.run(feed=fed, fetch_list=[loss])
print(f"loss {value[0]:.6f}")
print(f"speed {(STEPS - WARM) / (time.perf_counter() - begun):.1f} steps/s", flush=True)
exe.close()
