"""What is read: columnar files in batches (`columnar`), and readers of samples (`reader`).

``fluid.data(...)`` is a function of Fluid's: the Fluid door makes this package one that can be
called, too (`hpcdist.fluid.compat.data`).
"""

from hpcdist.data.columnar import Images, Vocabulary, packed, read

__all__ = ["Images", "Vocabulary", "packed", "read"]
