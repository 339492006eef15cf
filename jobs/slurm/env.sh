# What is particular to this site; every batch script here sources it. Adapt it once.

# module load python/3.11 openmpi/5.0        # your site's modules, or:
# . "$HOME/hpcdist/.venv/bin/activate"       # a virtual environment
[ ! -d .venv ] || . .venv/bin/activate

# How srun starts MPI: pmix goes with Open MPI, pmi2 with MPICH (`srun --mpi=list`).
export SLURM_MPI_TYPE=${SLURM_MPI_TYPE:-pmix}
export PMIX_MCA_psec=${PMIX_MCA_psec:-native}   # for Open MPI from PyPI, which has no munge
# For MPICH from PyPI: over UCX it hands out what lies behind its address in memory, too, and Slurm
# cannot read lines that long.
export MPIR_CVAR_CH4_NETMOD=${MPIR_CVAR_CH4_NETMOD:-ofi}

# In a container: what stands before `python`.
# IN_CONTAINER="apptainer exec --nv hpcdist.sif"
