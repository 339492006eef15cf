import time

from hpcdist.comm.world import mpi_world


def stuck_here():
    time.sleep(600)


world = mpi_world()
if world.rank == 1:
    stuck_here()
world.split(0, world.rank)
