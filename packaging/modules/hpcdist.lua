-- Lmod: hpcdist in a virtual environment, for example made by
--   python -m venv /apps/hpcdist/1.0 && /apps/hpcdist/1.0/bin/python -m pip install 'hpcdist[data]'
help([[hpcdist trains on MPI and Slurm clusters: parameter servers, embedding tables, collectives.
First steps: hpcdist --help; srun -n 4 hpcdist doctor]])
whatis("Name: hpcdist")
whatis("Category: machine learning")

local root = "/apps/hpcdist/1.0"

depends_on("openmpi")
prepend_path("PATH", pathJoin(root, "bin"))
setenv("VIRTUAL_ENV", root)
-- How srun starts Open MPI; pmi2 for MPICH.
setenv("SLURM_MPI_TYPE", "pmix")
