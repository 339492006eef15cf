import numpy as np
import hpcdist as fluid

ids = fluid.data("ids", [None, 1], "int64")
rows = fluid.layers.embedding(ids, [100, 4], is_sparse=True, is_distributed=True)
loss = fluid.layers.mean(rows)
fluid.optimizer.SGD(0.1).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
for step in range(5):
    exe.run(feed={"ids": np.arange(8).reshape(8, 1) + step}, fetch_list=[loss])
exe.close()
