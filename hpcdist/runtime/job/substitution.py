"""What a rank runs in place of a Program, and which connection it needs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hpcdist.base.errors import HpcdistError, PlanError
from hpcdist.comm.cluster import PSERVER, Cluster, RankRole
from hpcdist.graph.distribution import NOT_DISTRIBUTED
from hpcdist.graph.program import Program
from hpcdist.transpiler.by_hand import refuse_moved_by_hand, refuse_unserved_state
from hpcdist.transpiler.group import Group
from hpcdist.transpiler.hybrid import HybridGroup
from hpcdist.transpiler.table_metadata import tables_looked_up
from hpcdist.transpiler.turns import in_turns

ANOTHER = (
    "a job that trains a Program in a pipeline trains no other one: leave PipelineOptimizer out, "
    "or train the other Program in a separate job"
)


class LinkKind(Enum):
    """Which connection to the other ranks a Program asks for."""

    OF_ROLE = "that with which a rank of its role begins"
    SUMS_DENSE = "trainers sum dense gradients, though there are servers"
    PIPELINE = "each rank has a stage"


@dataclass(frozen=True)
class JobFacts:
    """What is known of a rank and its job when it meets a Program."""

    cluster: Cluster
    role: RankRole
    rank: int
    sums_dense: bool  # whether servers of a plain script are to keep its tables only
    by_script: bool  # whether the script transpiles its Programs
    has_trained: bool  # whether the job has a Program that trains
    minimizes: bool  # whether the script has minimized a Program


@dataclass(frozen=True)
class Substitution:
    """What stands for a Program: ``program``, by way of a ``link``.

    The script has transpiled it (``by_script``); or it is a plain script's, whose ``mains`` are
    transpiled first, with their ``startup``; or neither, then ``mains`` is empty.
    """

    program: Program
    link: LinkKind = LinkKind.OF_ROLE
    by_script: bool = False
    mains: tuple[Program, ...] = ()
    startup: Program | None = None


def substitution_of(program: Program, facts: JobFacts) -> Substitution:
    """Decide what a rank runs in place of a Program. HpcdistError if this job cannot run it."""
    by_script = facts.by_script
    if program.on_trainer is not None:
        by_script = True
        # A server may run the startup as it stands; that it cannot train, bind says.
        if facts.role.kind != PSERVER or program.trains:
            program = program.on_trainer
    if program.distribution != NOT_DISTRIBUTED:
        _check_transpiled(program, facts)
        hybrid = isinstance(program.distribution, HybridGroup)
        link = LinkKind.SUMS_DENSE if hybrid else LinkKind.OF_ROLE
        return Substitution(program, link, by_script=True)
    main = _main_of(program, facts.sums_dense)
    if by_script or main is None or not main.trains or main.startup is None:
        if not by_script and program.main is None:
            _check_not_minimized(program, facts)
        return Substitution(program, by_script=by_script)
    mains, link = [main], LinkKind.OF_ROLE
    if main.pipeline is not None and facts.cluster.size > 1:
        _check_pipeline(facts)
        link = LinkKind.PIPELINE
    elif facts.sums_dense:
        link = LinkKind.SUMS_DENSE
    elif facts.cluster.servers:
        mains = in_turns(main, main.startup, len(facts.cluster.servers))
    return Substitution(program, link, mains=tuple(mains), startup=main.startup)


def _main_of(program: Program, sums_dense: bool) -> Program | None:
    """Return the Program that trains, of a plain script: itself, or that of a startup Program."""
    if program.trains or program.main is None or not sums_dense:
        return program if program.trains else program.main
    with_tables = (main for main in program.mains if tables_looked_up(main))
    return next(with_tables, program.main)


def _check_not_minimized(program: Program, facts: JobFacts) -> None:
    """Refuse what each rank of a plain script would compute and keep by itself."""
    if facts.cluster.servers and not facts.minimizes:
        refuse_unserved_state(program)
    refuse_moved_by_hand(program, len(facts.cluster.trainers))


def _check_pipeline(facts: JobFacts) -> None:
    if facts.cluster.servers:
        raise PlanError(
            "a pipeline has no parameter servers, each stage updates its own parameters: start "
            "the job without --pservers, or leave PipelineOptimizer out"
        )
    if facts.has_trained:
        raise PlanError(ANOTHER)


def _check_transpiled(program: Program, facts: JobFacts) -> None:
    """Refuse what the script has transpiled for other ranks, or in two ways."""
    if isinstance(program.distribution, Group):
        _check_group(program.distribution, facts)
    if program.pipeline is not None:
        raise PlanError(
            "PipelineOptimizer cuts this program into stages, and the script transpiles it, too "
            "(DistributeTranspiler, or fleet): leave one of them out"
        )


def _check_group(group: Group, facts: JobFacts) -> None:
    """Refuse a group of other trainers than those of this job."""
    cluster, role, rank = facts.cluster, facts.role, facts.rank
    configured = (group.trainer_id, len(group.endpoints))
    actual = (role.index, len(cluster.trainers))
    if cluster.servers and not isinstance(group, HybridGroup):
        raise HpcdistError(
            f"rank {rank} is {role} of a job with parameter servers, but "
            f"the script transpiles in {group.mode} mode: start it without --pservers"
        )
    if configured != actual:
        raise HpcdistError(
            f"rank {rank} is trainer {actual[0]} of {actual[1]}, but the script "
            f"transpiles for trainer {configured[0]} of {configured[1]}: use PADDLE_TRAINER_ID and "
            "PADDLE_TRAINER_ENDPOINTS of the environment, or start as many ranks"
        )
