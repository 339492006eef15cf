"""Imports what is under `fluid.data`, and calls it, under the name that the arguments give."""

import importlib
import sys

name = sys.argv[2]
module = importlib.import_module(f"{name}.data")
fluid = importlib.import_module(name)
assert module.read is fluid.data.read and module.packed is fluid.data.packed
assert fluid.data("x", [None, 2]).shape == (-1, 2)
assert module.data("y", [None, 3]).shape == (-1, 3)
print("right")
