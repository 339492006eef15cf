"""What ``import paddle`` finds in a process that a script under --as-paddle has started."""

import importlib
import sys

from hpcdist.fluid.compat import aspaddle

del sys.modules[__name__]  # this file: hpcdist takes its place
aspaddle.install()
importlib.import_module(aspaddle.ROOT)
