import os, signal, sys
import numpy as np
import hpcdist as fluid

mode, how, epochs, run, victim, last = sys.argv[1:]
shuffle, window, lanes = eval(how)
me = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
rank = os.environ.get("HPCDIST_RANK", "0")
with open(f"new.pid.{rank}", "w") as f:
    f.write(str(os.getpid()))
os.replace(f.name, f"pid.{rank}")
trainers = int(os.environ.get("PADDLE_TRAINERS", "1"))
x = fluid.data("x", [None, 1], "float32")
number = fluid.data("id", [None, 1], "int64")
loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(x, 1)))
fluid.optimizer.SGD(0.01).minimize(loss)
exe, program = fluid.Executor(), fluid.default_main_program()
rows = fluid.data.read(
    "*.parquet",
    feed_list=[x, number],
    batch=24,
    drop_last=True,
    shuffle=shuffle,
    window=window,
    lanes=lanes,
    certificate="rows",
)
if mode in ("plain", "local") or mode == "nccl2" and trainers == 1:
    exe.run(fluid.default_startup_program())
elif mode == "nccl2":
    config = fluid.DistributeTranspilerConfig()
    config.mode = mode
    own = os.environ["PADDLE_CURRENT_ENDPOINT"]
    fluid.DistributeTranspiler(config).transpile(
        me, trainers=os.environ["PADDLE_TRAINER_ENDPOINTS"], current_endpoint=own
    )
    exe.run(fluid.default_startup_program())
else:
    config = fluid.DistributeTranspilerConfig()
    config.sync_mode = mode == "sync"
    if mode in ("half_async", "communicator"):
        config.runtime_split_send_recv, config.half_async = True, mode == "half_async"
    transpiler = fluid.DistributeTranspiler(config)
    if mode == "geo":
        config.geo_sgd_mode, config.geo_sgd_need_push_nums = True, 5
        transpiler = fluid.transpiler.GeoSgdTranspiler(config)
    servers = os.environ["PADDLE_PSERVERS_IP_PORT_LIST"]
    transpiler.transpile(me, pservers=servers, trainers=trainers, sync_mode=mode == "sync")
    if os.environ["PADDLE_TRAINING_ROLE"] == "PSERVER":
        own = os.environ["PADDLE_CURRENT_ENDPOINT"]
        for part in reversed(transpiler.get_pserver_programs(own)):
            exe.run(part)
        sys.exit(0)
    exe.run(fluid.default_startup_program())
    program = transpiler.get_trainer_program()
if mode != "plain" and trainers > 1:
    rows = rows.shard()
saver = fluid.checkpoint.Saver(exe, "saved", every=4, reader=rows, main_program=program)
saver.restore()
notes = open(f"used.{run}.{me}", "w")
print("from", rows.epoch, rows.position, file=notes, flush=True)
step = 0
while rows.epoch < int(epochs):
    before = rows.position
    for batch in rows():
        print(rows.epoch, before, *batch["id"].ravel(), file=notes, flush=True)
        before = rows.position
        if me == int(victim) and step == int(last):
            os.kill(os.getpid(), signal.SIGKILL)
        exe.run(program, feed=batch, fetch_list=[loss])
        saver.after_step()
        step += 1
saver.close()
exe.close()
