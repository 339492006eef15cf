"""Spack 1: `spack repo create hpc-local`; this file is packages/py_hpcdist/package.py there."""

from spack.package import depends_on, license, maintainers, variant, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyHpcdist(PythonPackage):
    """Distributed training on MPI and Slurm clusters: parameter servers and collectives."""

    homepage = "https://github.com/hpcdist/hpcdist"
    git = "https://github.com/hpcdist/hpcdist.git"

    maintainers("hpcdist")
    license("Apache-2.0")

    version("main", branch="main")

    variant("compression", default=False, description="lz4 and zstd in checkpoints")
    variant("data", default=True, description="Parquet, Arrow and CSV for data.read")
    variant("torch", default=False, description="PyTorch scripts over MPI")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@68:", type="build")
    depends_on("py-setuptools-scm@9:", type="build")

    depends_on("mpi", type=("build", "link", "run"))
    depends_on("py-mpi4py@4.1:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-numba@0.60:", type=("build", "run"))
    depends_on("py-h5py@3.10:~mpi", type=("build", "run"))
    depends_on("py-pooch@1.8:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("py-scikit-learn@1.4:", type=("build", "run"))
    depends_on("py-scipy@1.9:", type=("build", "run"))
    depends_on("py-six@1.16:", type=("build", "run"))
    depends_on("py-threadpoolctl@3.1:", type=("build", "run"))
    depends_on("py-xxhash@3.4:", type=("build", "run"))

    depends_on("py-hdf5plugin@4.3:", when="+compression", type=("build", "run"))
    depends_on("py-pyarrow@15:", when="+data", type=("build", "run"))
    depends_on("py-torch@2.13:", when="+torch", type=("build", "run"))
