import numpy as np

import hpcdist as fluid


def fresh():
    fluid.framework.switch_main_program(fluid.Program())
    fluid.framework.switch_startup_program(fluid.Program())
    return fluid.data("ids", [None, 1], "int64")


def trained(rows):
    loss = fluid.layers.reduce_mean(rows)
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    exe.run(feed={"ids": np.int64([[1]])}, fetch_list=[loss])


def with_policy(name):
    attr = fluid.ParamAttr(name, row_policy=policy)
    return fluid.layers.embedding(
        ids, [-1, 16], is_sparse=True, is_distributed=True, param_attr=attr
    )


ids = fresh()
# block
trained(rows)
fresh()
fluid.default_main_program().global_block().vars.clear()
# block
ids = fresh()
with open("vectors.txt", "w") as vectors:
    for word in ("the", "a"):
        print(word, *range(300), file=vectors)
# block
trained(rows)
ids = fresh()
# block
trained(rows)
ids = fresh()
# block
trained(with_policy("small"))
ids = fresh()
# block
rows = with_policy("large")
trained(rows)
program, loss, exe = fluid.default_main_program(), rows, fluid.Executor(fluid.CPUPlace())
feeds = [{"ids": np.int64([[1]])}]
# block
fluid.io.save_inference_model("model", ["ids"], [rows], exe)
ids = feeds[0]["ids"]
# block
