"""Fluid's module ``parallel_executor``."""

from hpcdist.executor.parallel_executor import ParallelExecutor

__all__ = ["ParallelExecutor"]
