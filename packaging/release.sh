#!/usr/bin/env bash
# Builds sdist and wheel, checks them, and tries the wheel on fresh environments of Python 3.10 to 3.13:
# its version, and a job of two ranks. Uploads nothing.
#
#   packaging/release.sh                           # with Open MPI and MPICH of PyPI
#   PYTHONS="3.10 3.13" MPIS=mpich packaging/release.sh
#   PYTHONS=3.11 MPIS=system packaging/release.sh    # with the mpirun on PATH, such as Debian's
#
# The version is that of git's last tag (git tag -a v1.0.0). A python that is not on PATH or known to
# pyenv is an error: a release is tried on all.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PIP_DISABLE_PIP_VERSION_CHECK=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe OMP_NUM_THREADS=1

# The interpreter itself: a shim of pyenv may be there for versions that are not chosen.
python_of() {
    local found
    for found in "$HOME"/.pyenv/versions/"$1".*/bin/python "$(command -v "python$1" || true)"; do
        if [ -x "$found" ] && "$found" -c 'import ensurepip' 2>/dev/null; then
            echo "$found"
            return
        fi
    done
    echo "release.sh: Python $1 with its venv module is not found; PYTHONS=\"...\" names others" >&2
    exit 1
}

if [ -n "$(git status --porcelain)" ]; then
    echo "release.sh: commit first: a release is what git has" >&2
    exit 1
fi
pythons=${PYTHONS:-3.10 3.11 3.12 3.13}
read -r first _ <<<"$pythons"
mpis=${MPIS:-openmpi mpich}
interpreter=$(python_of "$first")
"$interpreter" -m venv "$work/build"
"$work/build/bin/python" -m pip install --quiet build twine
rm -rf dist
"$work/build/bin/python" -m build --outdir dist . >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
"$work/build/bin/twine" check --strict dist/*
wheel=$(echo dist/*.whl)
version=$(basename "$wheel" | cut -d- -f2)

cp packaging/reframe/src/train.py "$work/train.py"
try() { # PYTHON MPI
    local env=$work/$1-$2 mpirun=mpirun extra='' of_debian
    "$(python_of "$1")" -m venv "$env"
    [ "$2" = system ] || { extra="[$2]"; mpirun=$env/bin/mpirun; }
    "$env/bin/python" -m pip install --quiet --no-compile "$wheel$extra"
    of_debian=$(compgen -G '/usr/lib/*/libmpich.so.12' || true)
    if [ "$2" = system ] && [ -n "$of_debian" ]; then # mpi4py looks for the name that MPICH itself gives
        mkdir "$env/lib/mpich" && ln -s "$of_debian" "$env/lib/mpich/libmpi.so.12"
        export LD_LIBRARY_PATH=$env/lib/mpich
    fi
    # Not in the checkout, whose package Python would take.
    (
        cd "$work"
        told=$("$env/bin/python" -m hpcdist --version)
        [[ $told == *"$version"* ]] || { echo "release.sh: Python $1: --version is '$told', not $version" >&2; exit 1; }
        alone=$("$env/bin/python" -m hpcdist --quiet train.py | grep '^loss')
        job=$("$mpirun" -n 2 "$env/bin/python" -m hpcdist --quiet --pservers 1 train.py | grep '^loss')
        [ "$alone" = "$job" ] || { echo "release.sh: Python $1, $2: '$alone' alone, '$job' on 2 ranks" >&2; exit 1; }
        library=$("$env/bin/python" -c 'from mpi4py import MPI; print(MPI.Get_library_version().strip("\0").splitlines()[0])')
        echo "Python $1, $2 (${library%%,*}): $told, $job on 1 and 2 ranks"
    )
    rm -rf "$env"
}

wheel=$PWD/$wheel
for number in $pythons; do
    for mpi in $mpis; do
        try "$number" "$mpi"
    done
done
ls -l dist
echo "release.sh: $version is ready; upload with: twine upload dist/*"
