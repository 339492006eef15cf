"""Results without dimensions: of shape [], where operators of Fluid give [1]."""

from __future__ import annotations

from hpcdist.graph import names
from hpcdist.graph.program import program_of
from hpcdist.graph.variable import Variable


def scalar(x: Variable) -> Variable:
    """Return ``x``, a new value of shape [1], with shape [] and under the name that it had."""
    name, block = x.name, program_of(x).current_block()
    block._rename_var(name, names.generate(f"{name}.of_one"))
    out = block.create_var(name, dtype=x.dtype, stop_gradient=x.stop_gradient)
    note = block.create_var(names.generate(f"{name}.shape"), dtype=x.dtype, stop_gradient=True)
    block.append_op("reshape2", {"X": x}, {"Out": out, "XShape": note}, {"shape": []})
    return out
