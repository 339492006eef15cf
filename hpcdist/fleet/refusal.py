"""The one place where collective mode is refused."""

from __future__ import annotations

from typing import NoReturn

from hpcdist.errors import FleetError


def refuse_collective() -> NoReturn:
    """Say that collective mode is not there yet."""
    raise FleetError(
        "fleet's collective mode is not available yet in this release: use parameter servers, "
        "fleet.init(PaddleCloudRoleMaker()) under mpirun -n 4 python -m hpcdist --pservers 2"
    )
