import sys
import numpy as np
import hpcdist as fluid
from hpcdist.checkpoint import write

x = fluid.data("x", [None, 1000])
fluid.layers.fc(x, 3000)
exe = fluid.Executor()
exe.run(fluid.default_startup_program())
# Helpers are first needed when the script is long over.
ended, begin = sys.modules["threading"].Event(), write.write_part
sys.modules["threading"]._register_atexit(ended.set)
back = write.WriteBack
write.WriteBack = lambda descriptor: ended.wait(60) and back(descriptor)
fluid.checkpoint.save(exe, sys.argv[1], 1, asynchronous=True)
