import numpy as np
import hpcdist as fluid

mode, steps, rate, *_ = sys.argv[1:]
steps, rate = int(steps), int(rate)
trainers = int(os.environ["PADDLE_TRAINERS"])
me = int(os.environ["PADDLE_TRAINER_ID"])
dies = moment == "step"
x = fluid.data(name="x", shape=[None, trainers], dtype="float32")
zero = fluid.ParamAttr(initializer=fluid.initializer.Constant(0.0))
a, b = (fluid.layers.fc(x, 1, param_attr=zero, bias_attr=False) for _ in range(2))
parts = [a, b]
if mode == "hybrid":
    ids = fluid.data(name="ids", shape=[None, 1], dtype="int64")
    parts.append(
        fluid.layers.embedding(ids, [-1, 1], is_sparse=True, is_distributed=True, param_attr=zero)
    )
loss = fluid.layers.mean(fluid.layers.sums(parts))
exe = fluid.Executor(fluid.CPUPlace())


def note(step):
    os.pwrite(acked, b"%8d" % step, 0)
    at("step", step)
    time.sleep(0.001)
    if step == steps // 2 and saves:
        if me == 0:
            os.close(os.open("saving", os.O_CREAT))
        at("save")
        fluid.checkpoint.save(exe, "saved", step)
    if step == steps - 1 and dies:
        time.sleep(60)  # however late the kill comes, it comes before the end


def first_step():
    saved = fluid.checkpoint.restore(exe, "saved") if "resumes" in sys.argv else None
    first = saved.step if saved else 0
    if "resumes" in sys.argv:
        with open(f"resumed.{RANK}", "w") as file:
            file.write(str(first))
    return first


acked = os.open(f"step.{RANK}", os.O_CREAT | os.O_WRONLY)
note(0)
if mode in ("plain", "collective", "hybrid"):
    fluid.optimizer.SGD(float(rate)).minimize(loss)
    at("connect")
    exe.run(fluid.default_startup_program())
    at("compile")
    feed = {"x": np.ones((6, trainers), "float32")}
    moved = 2 * trainers  # values that are added up, each of which moves by the rate
    if mode == "hybrid":
        feed["ids"] = np.full((6, 1), 7)
        moved += 1
    for step in range(first_step(), steps):
        (value,) = exe.run(feed=feed, fetch_list=[loss])
        expected = -1.0 * moved * rate * step
        assert abs(value[0] - expected) < 1e-3 * rate + 1e-5 * abs(expected), (step, value)
        note(step + 1)
    at("close")
    exe.close()
    at("end")
    sys.exit()
config = fluid.DistributeTranspilerConfig()
config.sync_mode = mode == "sync"
if mode in ("half_async", "communicator"):
    config.runtime_split_send_recv = True
    config.half_async = mode == "half_async"
if mode == "geo":
    config.geo_sgd_mode, config.geo_sgd_need_push_nums = True, 5
    t = fluid.transpiler.GeoSgdTranspiler(config)
else:
    t = fluid.DistributeTranspiler(config)
fluid.optimizer.SGD(float(rate)).minimize(loss)
t.transpile(
    me,
    pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"],
    trainers=trainers,
    sync_mode=mode == "sync",
)
if serves:
    endpoint = os.environ["PADDLE_CURRENT_ENDPOINT"]
    main, startup = t.get_pserver_programs(endpoint)
    at("connect")
    exe.run(startup)
    at("compile")
    exe.run(main)
    np.save(f"applied.{RANK}.npy", np.array(fluid.runtime.updates_applied()))
    for name in ("fc_0.w_0", "fc_1.w_0"):
        var = fluid.global_scope().find_var(name)
        if var is not None:
            np.save(f"{name}.npy", np.array(var.get_tensor()).ravel())
    at("end")
else:
    main = t.get_trainer_program()
    at("connect")
    exe.run(fluid.default_startup_program())
    at("compile")
    row = np.zeros((1, trainers), "float32")
    row[0, me] = 1
    for step in range(first_step(), steps):
        (value,) = exe.run(main, feed={"x": row}, fetch_list=[loss])
        if mode == "sync" and "saves" in sys.argv:
            assert abs(value[0] + 2 * rate * step / trainers) < 1e-3 * rate * (step + 1), (
                step,
                value,
            )
        note(step + 1)
    at("close")
    exe.close()
    at("end")
