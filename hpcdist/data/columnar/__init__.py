"""Columnar files as batches: `hpcdist.data.read`, and the decoding of texts and images."""

from __future__ import annotations

from typing import Any

from hpcdist.data.columnar.images import Images
from hpcdist.data.columnar.optional_pyarrow import needing_pyarrow
from hpcdist.data.columnar.packing import Packed, packed
from hpcdist.data.columnar.vocabulary import Vocabulary

__all__ = ["Images", "Packed", "Vocabulary", "packed", "read"]


def read(*args: Any, **kwargs: Any) -> Any:
    """Read columnar files in batches: see `hpcdist.data.columnar.read_files.read`.

    Examples:
        >>> import tempfile
        >>> file = tempfile.mkdtemp() + "/a.csv"
        >>> rows = [[1.5, 2], [2.5, 4]]
        >>> np.savetxt(file, rows, ["%g", "%d"], ",", header="x,y", comments="")
        >>> x, y = fluid.data("x", [None, 1]), fluid.data("y", [None, 1], "int64")
        >>> rows = fluid.data.read(file, feed_list=[x, y], batch=2)
        >>> [batch["y"].tolist() for batch in rows()]
        [[[2], [4]]]
    """
    return needing_pyarrow("read_files", "data.read").read(*args, **kwargs)
