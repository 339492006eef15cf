"""What pages leave to their reader: a small network, data, and an executor that trains it."""

import numpy as np

import hpcdist as fluid

x, y = fluid.data("x", [None, 13]), fluid.data("y", [None, 1])
fc_4 = fluid.layers.fc(x, 4)
fc_8 = fluid.layers.fc(fc_4, 4)
fc_12 = fluid.layers.fc(fc_8, 4)
loss = fluid.layers.reduce_mean(fluid.layers.square_error_cost(fluid.layers.fc(fc_12, 1), y))
program = fluid.default_main_program()
exe = fluid.Executor(fluid.CPUPlace())
feeder = fluid.DataFeeder([x, y], fluid.CPUPlace())
rng = np.random.default_rng(0)
drawn = [(row.astype("float32"), row[:1].astype("float32")) for row in rng.normal(size=(128, 13))]


def samples():
    yield from drawn


def trained(loss=loss):
    fluid.optimizer.Adam(0.01).minimize(loss)
    exe.run(fluid.default_startup_program())
