import hpcdist as fluid

fluid.layers.fc(fluid.data("x", [None, 2]), 1)
exe = fluid.Executor()
exe.run(fluid.default_startup_program())
fluid.checkpoint.save(exe, "saved", 1)
fluid.io.save_params(exe, "model", format="fluid")
