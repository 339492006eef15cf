"""``python -m hpcdist [options] script.py [script arguments]``, and the command ``hpcdist``."""

from __future__ import annotations

import os
import sys
import traceback

from hpcdist.base import hidden
from hpcdist.comm.process_manager import launched_rank, launched_size
from hpcdist.launch.limits import few_threads  # needs none of them

PATIENCE_S = 2.0  # how long the launcher may take to end the other ranks


def main() -> None:
    """Run the command line; where what it needs cannot be imported, say so once."""
    obstacle = hidden.FOUND or few_threads()
    try:
        if obstacle:
            raise ImportError(obstacle)
        from hpcdist.launch.main import main as run
    except ImportError as error:
        if launched_rank() == 0:
            said = f"hpcdist: {obstacle}" if obstacle else _message(error)
            print(said, file=sys.stderr, flush=True)
        if launched_size() is not None:
            from hpcdist.launch.quiet_end import end_refused  # needs none of them

            end_refused(PATIENCE_S)
            os._exit(1)
        raise SystemExit(1) from None
    run()


def _message(error: ImportError) -> str:
    """Name the package that cannot be imported: the first that is not this one."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    names = [str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame in frames]
    others = [name for name in names if name not in ("__main__", "hpcdist")]
    package = [*others, (error.name or "hpcdist").partition(".")[0]][0]
    return (
        f"hpcdist: {package} cannot be imported by {sys.executable}: {error}\n"
        f"install it anew: {sys.executable} -m pip install --force-reinstall {package}"
    )


if __name__ == "__main__":
    main()
