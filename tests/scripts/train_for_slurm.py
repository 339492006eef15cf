import os
import numpy as np
import hpcdist as fluid

x = fluid.data(name="x", shape=[None, 4], dtype="float32")
y = fluid.data(name="y", shape=[None, 1], dtype="float32")
loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, size=1), y))
fluid.optimizer.SGD(0.01).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
rows = np.random.RandomState(3).rand(24, 5).astype("float32")
for step in range(5):
    (value,) = exe.run(feed={"x": rows[:, :4], "y": rows[:, 4:]}, fetch_list=[loss])
exe.close()
print("host", os.uname().nodename, "loss", float(value[0]).hex())
