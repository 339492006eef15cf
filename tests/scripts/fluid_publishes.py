"""Trains a distributed table of Fluid's and publishes it; prints whether the versions agree."""

import sys

import numpy as np

import hpcdist as fluid
import hpcdist.serving

ids = fluid.layers.data(name="ids", shape=[1], dtype="int64")
rows = fluid.layers.embedding(
    ids, size=[-1, 4], is_sparse=True, is_distributed=True, param_attr=fluid.ParamAttr(name="t")
)
loss = fluid.layers.mean(fluid.layers.square(rows))
fluid.optimizer.Adagrad(learning_rate=0.1).minimize(loss)
test = fluid.default_main_program().clone(for_test=True)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
publisher = hpcdist.checkpoint.Publisher(sys.argv[1], every=2)
for step in range(6):
    fed = np.random.RandomState(step).randint(0, 60, (16, 1))
    exe.run(feed={"ids": fed}, fetch_list=[loss])
    publisher.after_step()
publisher.close()
every = np.arange(60)[:, None]
(now,) = exe.run(test, feed={"ids": every}, fetch_list=[rows])
exe.close()
with hpcdist.serving.Lookup(sys.argv[1], watch=False) as lookup:
    same = (lookup.pull("t", every[:, 0]) == now.reshape(60, 4)).all()
    print(f"version {lookup.version} of step {lookup.current.step} is the same: {same}")
