"""torch.distributed over MPI: ``import hpcdist.torch`` registers the backend ``hpcdist``.

Needs torch 2.13 or newer (``python -m pip install 'torch>=2.13'``): `LaunchError` for an older one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hpcdist.base.errors import LaunchError, RankFailure
from hpcdist.base.extras import install_command
from hpcdist.base.lazy import lazy_names
from hpcdist.ps.row_policy import ClickScore, RowPolicy

OLDEST = (2, 13)  # whose process groups can be written in Python as far as we need

found = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2]))
if found < OLDEST:
    raise LaunchError(
        f"hpcdist.torch needs torch {OLDEST[0]}.{OLDEST[1]} or newer, found {torch.__version__}: "
        f"{install_command('torch')}"
    )

from hpcdist.ps.facts import Initial  # noqa: E402
from hpcdist.torch.embedding import Embedding, EmbeddingBag, dense_state_dict  # noqa: E402
from hpcdist.torch.models import drop_tables  # noqa: E402
from hpcdist.torch.registration import register  # noqa: E402
from hpcdist.torch.rows_ahead import rows_ahead  # noqa: E402
from hpcdist.torch.served_optimizer import ServedOptimizer  # noqa: E402
from hpcdist.torch.shrink import shrink  # noqa: E402
from hpcdist.torch.table_optimizer import TableOptimizer  # noqa: E402

if TYPE_CHECKING:
    from hpcdist.torch.onnx_model import onnx_model
    from hpcdist.torch.published import Publisher, shrink_tables
    from hpcdist.torch.saver import Saver

register()

# What reads and writes checkpoints is imported when it is first used.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Publisher": ".published",
        "Saver": ".saver",
        "onnx_model": ".onnx_model",
        "shrink_tables": ".published",
    },
)

__all__ = [
    "ClickScore",
    "Embedding",
    "EmbeddingBag",
    "Initial",
    "Publisher",
    "RankFailure",
    "RowPolicy",
    "Saver",
    "ServedOptimizer",
    "TableOptimizer",
    "dense_state_dict",
    "drop_tables",
    "onnx_model",
    "rows_ahead",
    "shrink",
    "shrink_tables",
]
