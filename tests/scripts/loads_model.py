import sys, numpy as np, hpcdist as fluid

exe = fluid.Executor()
program, feeds, fetches = fluid.io.load_inference_model(sys.argv[1], exe)
x = np.load(sys.argv[1] + "/x.npy")
np.save(sys.argv[1] + "/got.npy", exe.run(program, feed={feeds[0]: x}, fetch_list=fetches)[0])
print(feeds, [v.name for v in fetches], [op.type for op in program.global_block().ops])
