from page_network import *

ids = fluid.data("ids", [None, 1], "int64")
emb = fluid.ParamAttr("emb.w_0")
rows = fluid.layers.embedding(ids, [-1, 4], is_sparse=True, is_distributed=True, param_attr=emb)
trained(loss + fluid.layers.reduce_mean(rows))
feeder = fluid.DataFeeder([x, y, ids], exe.place)
drawn[:] = [(*sample, [k]) for k, sample in enumerate(drawn)]
accuracy, test = (lambda program: 0.5), program.clone(for_test=True)
# block
reader = fluid.checkpoint.resumable(fluid.batch(samples, 64))
# block
fluid.checkpoint.save(exe, "checkpoints", 1000)
# block
dense = fluid.Program(), fluid.Program()
with fluid.program_guard(*dense):
    fluid.layers.fc(fluid.data("other", [None, 3]), 2)
exe.run(dense[1])
program, whole = dense[0], program
fluid.framework.switch_main_program(program)
# block
# block
