import numpy as np

import hpcdist as fluid

layers = fluid.layers
x = fluid.data("x", [1], "float32")
# block
exe = fluid.Executor(fluid.CPUPlace())
(sum_of_ten,) = exe.run(feed={"x": np.float32([2])}, fetch_list=[total])
assert sum_of_ten[0] == 20
senders, receivers = (fluid.data(name, [None], "int64") for name in ("senders", "receivers"))
h = fluid.data("h", [None, 16])
# block
feed = {"num_nodes": np.int64([3]), "senders": np.int64([0, 1]), "receivers": np.int64([2, 2])}
feed["h"], feed["x"] = np.ones((2, 16), "float32"), np.float32([2])
(received,) = exe.run(feed=feed, fetch_list=[sums])
assert received.shape == (3, 16) and received[2, 0] == 2
