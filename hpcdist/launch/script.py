"""Running the user's script as Python would, and the exit code that it ends with."""

from __future__ import annotations

import functools
import logging
import os
import random
import runpy
import sys
import traceback
from pathlib import Path

import numpy as np

from hpcdist import runtime
from hpcdist.base import settings
from hpcdist.base.signals import forget_children, hold_warning
from hpcdist.base.trace.position import here
from hpcdist.checkpoint import preemption
from hpcdist.fluid.compat import advice
from hpcdist.launch import (
    logs,
    options,
    script_arguments,
    slurm,
)
from hpcdist.launch.logs import Output
from hpcdist.launch.options import Options
from hpcdist.launch.script_arguments import ScriptArguments


def code_of_script(options: Options) -> int:
    """Run the script; return its exit code. A process that the script forks ends in here."""
    rank = os.getpid()
    code = 0
    try:
        run_script(options)
    except SystemExit as exit:
        code = code_of(exit)
    except BaseException:
        if os.getpid() == rank:
            raise
        traceback.print_exc()
        code = 1
    if os.getpid() != rank:
        # Not by sys.exit: what is registered with atexit, MPI_Finalize too, is for the rank to do.
        logs.flush()
        os._exit(code)
    return code


def run_script(chosen: Options) -> None:
    """Run the script as ``python script.py`` or ``python -m`` would, its random numbers seeded.

    A PyTorch script sets its own seeds, as under torchrun.
    """
    preemption.listen()
    logs.show_messages(logging.WARNING if chosen.quiet else logging.INFO, chosen.log_level)
    if chosen.log_dir is not None and runtime.is_first():
        here.after_first_step.append(functools.partial(slurm.note_first_step, chosen.log_dir))
    settings.SEED.write(chosen.seed)
    settings.DENSE.write(chosen.dense)
    if chosen.as_torchrun:
        if runtime.is_server():
            from hpcdist.fluid.declared.servers import serve

            serve()
            return
        from hpcdist.torch import registration  # an optional extra, and seconds to import

        registration.stand_in()
    else:
        random.seed(chosen.seed)
        np.random.seed(chosen.seed)
        from hpcdist.fluid.compat import one_element

        one_element.install()
    if chosen.as_paddle:
        from hpcdist.fluid.compat import aspaddle

        aspaddle.install()
    else:
        advice.tell()
    path = os.path.join(os.getcwd(), chosen.script)  # Python gives scripts it as __file__
    sys.argv = arguments = ScriptArguments([chosen.script, *chosen.script_args], path)
    ours = script_arguments.misplaced(chosen.script_args, options.names())

    def check_arguments() -> None:
        if ours and runtime.is_first() and sys.argv is arguments and not arguments.read:
            arguments.read = True  # told once
            Output().announce(script_arguments.warning(ours, chosen.script))

    here.after_first_step.append(check_arguments)
    sys.path[0] = os.getcwd() if chosen.module else str(Path(chosen.script).resolve().parent)
    try:
        if chosen.module:
            runpy.run_module(chosen.script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(path, run_name="__main__")
        check_arguments()
    finally:
        forget_children()
        hold_warning()


def code_of(exit: SystemExit) -> int:
    """Return the code of an exit as Python's interpreter does, printing a message given instead."""
    if exit.code is None:
        return 0
    if isinstance(exit.code, int):
        return exit.code & 0xFF
    print(exit.code, file=sys.stderr)
    return 1
