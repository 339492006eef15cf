import os, sys
from hpcdist.comm.process_manager import launched_rank
from hpcdist.launch.doctor import command, facts


def broken():
    raise RuntimeError("of rank 1")


if launched_rank() == 1:
    facts.gpus = broken
command.main([])
