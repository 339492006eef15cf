"""Fluid's module ``compiler``: programs for several devices, and their strategies."""

from hpcdist.executor.compiled_program import CompiledProgram
from hpcdist.executor.strategies import BuildStrategy, ExecutionStrategy

__all__ = ["BuildStrategy", "CompiledProgram", "ExecutionStrategy"]
