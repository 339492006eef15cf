"""The operators, one `define` each: the first look-up of one imports all modules of it.

``xp`` is numpy or cupy. Arguments without a type are arrays of it, or attributes of any type; what
operators take is in `OpDef` (`hpcdist.graph.registry`) and in the signature given to `define`; what
kernels and rules give has names in `hpcdist.ops.types`.
"""

import importlib

from hpcdist.graph.registry import define_later

define_later(lambda: importlib.import_module("hpcdist.ops.families"))
