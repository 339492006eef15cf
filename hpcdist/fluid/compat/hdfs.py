"""Fluid's clients of HDFS: scripts import them whether they need them or not."""

from __future__ import annotations

from typing import Any, NoReturn

from hpcdist.base.errors import MissingNameError
from hpcdist.fluid.compat import fluid_names

_MODULE = f"{fluid_names.FLUID}.contrib.utils"


def HDFSClient(*args: Any, **kwargs: Any) -> NoReturn:
    """Refuse to make a client, when it is made, not when it is imported."""
    raise _refusal("HDFSClient")


def multi_download(*args: Any, **kwargs: Any) -> NoReturn:
    """Refuse to fetch files from HDFS."""
    raise _refusal("multi_download")


def multi_upload(*args: Any, **kwargs: Any) -> NoReturn:
    """Refuse to bring files to HDFS."""
    raise _refusal("multi_upload")


def _refusal(name: str) -> MissingNameError:
    return MissingNameError(fluid_names.describe_missing(_MODULE, name, ()))
