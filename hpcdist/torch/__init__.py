"""torch.distributed over MPI: ``import hpcdist.torch`` registers the backend ``hpcdist``.

Needs torch 2.13 or newer (``python -m pip install 'torch>=2.13'``): `LaunchError` for an older one,
`ModuleNotFoundError` without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdist.base.errors import LaunchError, RankFailure
from hpcdist.base.extras import install_command
from hpcdist.base.lazy import lazy_names

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":  # torch is there, and lacks something of its own
        raise
    raise ModuleNotFoundError(
        f"hpcdist.torch needs torch, which is not installed: {install_command('torch')}",
        name="torch",
    ) from None

OLDEST = (2, 13)  # whose process groups can be written in Python as far as we need

found = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2]))
if found < OLDEST:
    raise LaunchError(
        f"hpcdist.torch needs torch {OLDEST[0]}.{OLDEST[1]} or newer, found {torch.__version__}: "
        f"{install_command('torch')}"
    )

from hpcdist.torch.registration import register  # noqa: E402

if TYPE_CHECKING:
    from hpcdist.ps.facts import Initial
    from hpcdist.ps.row_policy import ClickScore, RowPolicy
    from hpcdist.torch.embedding import Embedding, EmbeddingBag, dense_state_dict
    from hpcdist.torch.models import drop_tables
    from hpcdist.torch.onnx_model import onnx_model
    from hpcdist.torch.prefetch import rows_ahead
    from hpcdist.torch.published import Publisher, shrink_tables
    from hpcdist.torch.saver import Saver
    from hpcdist.torch.served_optimizer import ServedOptimizer
    from hpcdist.torch.shrinking import shrink
    from hpcdist.torch.table_optimizer import TableOptimizer

register()

# Tables, and what reads and writes checkpoints, are imported when they are first used.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ClickScore": "hpcdist.ps.row_policy",
        "Embedding": ".embedding",
        "EmbeddingBag": ".embedding",
        "Initial": "hpcdist.ps.facts",
        "Publisher": ".published",
        "RowPolicy": "hpcdist.ps.row_policy",
        "Saver": ".saver",
        "ServedOptimizer": ".served_optimizer",
        "TableOptimizer": ".table_optimizer",
        "dense_state_dict": ".embedding",
        "drop_tables": ".models",
        "onnx_model": ".onnx_model",
        "rows_ahead": ".prefetch",
        "shrink": ".shrinking",
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
