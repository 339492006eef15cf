"""One step of sgd by its compiled kernel: prints the parameter and the kernels found on disk."""

import numpy as np

from hpcdist.ops.optimize.update_kernels import PASSES

p, rate, scale = np.ones(3, np.float32), np.array([0.5], np.float32), np.ones(1, np.float32)
PASSES["sgd"](p, np.ones(3, np.float32), np.zeros(1, np.int64), rate, scale, ())
print(p[0], sum(PASSES["sgd"].stats.cache_hits.values()))
