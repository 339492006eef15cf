"""What a trainer keeps of a Program, as checkpoints save and restore it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from typing import Any

from hpcdist.base.errors import CheckpointError
from hpcdist.checkpoint.checkpoint import Checkpoint
from hpcdist.checkpoint.described import Described
from hpcdist.checkpoint.divided import OWN
from hpcdist.checkpoint.kept import LocalPiece, NamedShards, StepCounter, unsliced
from hpcdist.checkpoint.layout import path_of
from hpcdist.checkpoint.metadata import OPTIMIZER, PARAMETER, RATE, Piece
from hpcdist.checkpoint.plan import Saved
from hpcdist.checkpoint.sources import Source
from hpcdist.executor.control import ProgramPeers
from hpcdist.executor.executor import Executor
from hpcdist.executor.merging import merged_steps
from hpcdist.executor.scope import Scope, global_scope, holds_averages
from hpcdist.graph.op_role import MERGE_COUNTER
from hpcdist.graph.program import Program
from hpcdist.graph.variable import Parameter, Variable
from hpcdist.ops.optimize.dgc import COUNTER
from hpcdist.ps.row_policy import RowPolicy
from hpcdist.ps.table import SparseTable
from hpcdist.runtime.kept.description import describe, fingerprint
from hpcdist.runtime.kept.divisions import divisions
from hpcdist.runtime.kept.peers import program_peers
from hpcdist.runtime.kept.server import counter_of
from hpcdist.runtime.kept.variables import (
    individual,
    is_table,
    persistables,
    program_of_job,
    roles_of,
    tables_of,
    whole_variables,
)
from hpcdist.transpiler.compressed import compressed_updates
from hpcdist.transpiler.group import group_of
from hpcdist.transpiler.hybrid import served_plan
from hpcdist.transpiler.plan import trainer_plan
from hpcdist.transpiler.sharded_updates import not_here, owners_of
from hpcdist.transpiler.table_metadata import is_distributed_lookup, policy_of, read_tables


class KeptProgram:
    """What this trainer keeps of ``main``, the user's Program, in a scope: see `Kept`.

    ``executor`` draws the random numbers of its operators; without one their streams are not saved.
    """

    def __init__(
        self, main: Program | None, scope: Scope | None, executor: Executor | None = None
    ) -> None:
        """None: the default main Program, the global scope as it is now.

        CheckpointError if no Program is given or meant.
        """
        self.main, self._executor = program_of_job(main), executor
        self.values = scope if scope is not None else global_scope()

    @property
    def program(self) -> Program:
        """What this rank runs in place of the user's Program."""
        return self.peers.program(self.main)

    @property
    def peers(self) -> ProgramPeers:
        """The other ranks. CheckpointError on a server."""
        return program_peers()

    @property
    def tables(self) -> list[SparseTable]:
        """The distributed tables that this process holds rows of."""
        return tables_of(self.program, self.values)

    @property
    def policies(self) -> dict[str, RowPolicy | None]:
        """The policies of all tables, by name; None of what is no table."""
        return {var.name: policy_of(var) for var in self.main.list_vars()}

    @property
    def fingerprint(self) -> str:
        """A digest that is equal for Programs that compute the same."""
        return fingerprint(self.main)

    @property
    def described(self) -> Described | None:
        """The network, if a restore can say where another one differs."""
        return describe(self.main)

    @property
    def lockstep(self) -> bool:
        """Whether trainers take each step together."""
        plan = trainer_plan(self.program)
        return plan is None or plan.mode.lockstep

    def settle(self) -> dict[str, int]:
        """Wait until all that was sent has arrived; return what is counted."""
        return self.peers.settle(self.program)

    def catch_up(self) -> None:
        """When all trainers have settled: take over what they have sent."""
        self.peers.catch_up(self.program)

    def streams(self) -> dict[str, Any]:
        """Return how far streams of random numbers are, as plain data."""
        return {} if self._executor is None else self._executor.states.positions()

    def shards(self) -> NamedShards:
        """Return the shards to save; CheckpointError for averages in place of parameters."""
        peers, program = self.peers, self.program
        refuse_averages(peers, program, self.values)
        block = program.global_block()
        records = program.distribution.records if peers.servers else None
        return NamedShards(
            whole_variables(program, self.values),
            self.tables,
            () if records is None else {r.origin.name for r in records.distributed_vars},
            self.individual(),
            [(owner, _declared(block.var(name))) for name, owner in owners_of(program).items()],
        )

    # -- restoring ---------------------------------------------------------------------------
    @property
    def rates(self) -> set[str]:
        """The names of learning rates."""
        return {name for name, role in roles_of(self.main).items() if role == RATE}

    @property
    def names(self) -> set[str]:
        """The names of all arrays that the job keeps, on whichever rank."""
        return {var.name for var in persistables(self.main)}

    @property
    def counter(self) -> StepCounter | None:
        """The step counter of schedules, if there is one."""
        return counter_of(trainer_plan(self.program))

    def individual(self) -> dict[str, str]:
        """Return how what each trainer has of its own divides, by name."""
        peers, program = self.peers, self.program
        kinds = {}
        if peers.trainers > 1:
            kinds = divisions(program, shared=peers.shares_batches)
        return {name: kinds.get(name, OWN) for name in individual(program)}

    def check(self, checkpoint: Checkpoint) -> None:
        """Raise CheckpointError for a checkpoint that this job cannot continue from."""
        _check_merged(checkpoint, self.program, self.peers.trainers)
        _check_compressed(checkpoint, self.program, self.peers.trainers)

    def wanted(
        self, checkpoint: Checkpoint, leave: Collection[str], *, partial: bool
    ) -> list[LocalPiece]:
        """Return the pieces this process takes up whole, but for ``leave``."""
        variables = [v for v in persistables(self.program) if v.name not in leave]
        if partial:
            variables = [v for v in variables if _may_fit(checkpoint, v, self.values)]
        return wanted(checkpoint, variables, self.values, kept_elsewhere(self.program))

    def set_streams(self, streams: Mapping[str, Any], step: int) -> None:
        """Continue streams of random numbers from where they were in a step."""
        if self._executor is not None:
            self._executor.states.load(streams, step)

    def resume(self, counted: Mapping[str, int]) -> None:
        """When all ranks have loaded: continue from what they hold, and from what was counted."""
        self.peers.resume(self.program, counted, self.values)


def refuse_averages(peers: ProgramPeers, program: Program, scope: Scope) -> None:
    """Refuse to save what servers hold while trainers have averages in place of it."""
    if peers.servers and group_of(program) is None and holds_averages(scope):
        raise CheckpointError(
            "inside apply() parameters have their averages, but servers would save the original "
            "values: save_params and save_inference_model save the averages; save anything else "
            "outside the `with`"
        )


def _declared(var: Variable) -> LocalPiece:
    """Return a variable that one trainer holds, which may be another one, as all know it."""
    role = PARAMETER if isinstance(var, Parameter) else OPTIMIZER
    piece = Piece(var.name, role, var.dtype, var.shape, 0, var.shape[0], path_of(var.name))
    return LocalPiece(var.name, piece)


def _may_fit(checkpoint: Checkpoint, var: Variable, scope: Scope) -> bool:
    """Return whether there is a value to be replaced, or else a saved one as declared."""
    if scope.array_of(var.name) is not None:
        return True
    return checkpoint.has(var.name) and _is_as_declared(var, checkpoint.saved(var.name))


def _check_merged(checkpoint: Checkpoint, program: Program, trainers: int) -> None:
    """Refuse the gradients of steps of other trainers, and of more steps than an update takes."""
    saved, steps = len(checkpoint.facts.trainers), merged_steps(program)
    counters = [name for name in checkpoint.variables if MERGE_COUNTER in name]
    merged = max((int(checkpoint.read(name)[0]) for name in counters), default=0)
    if merged and trainers != saved:
        raise CheckpointError(
            f"{checkpoint.manifest} was saved when each of {saved} trainers had merged the "
            f"gradients of {merged} steps, this job has {trainers}: start as many; to change their "
            "number, save after a step that updates"
        )
    if merged >= steps:
        raise CheckpointError(
            f"{checkpoint.manifest} was saved when the gradients of {merged} steps had been "
            f"merged, this program updates after {steps}: set k_steps to its former value; to "
            "change it, save after a step that updates"
        )


def _check_compressed(checkpoint: Checkpoint, program: Program, trainers: int) -> None:
    """Refuse what other trainers have not sent yet of their gradients; one alone sends none."""
    saved, updates = len(checkpoint.facts.trainers), compressed_updates(program)
    if not updates or saved in (1, trainers) or not checkpoint.has(COUNTER):
        return
    begin = int(updates[0].attrs["rampup_begin_step"])
    if int(checkpoint.read(COUNTER)[0]) >= begin:
        raise CheckpointError(
            f"{checkpoint.manifest} was saved when each of {saved} trainers kept what DGCMomentum "
            f"had not sent of its gradients, this job has {trainers}: start as many"
        )


def wanted(
    checkpoint: Source,
    variables: Iterable[Variable],
    scope: Scope,
    elsewhere: Set[str] = frozenset(),
) -> list[LocalPiece]:
    """Return those of some variables that this process is to take up whole.

    Those without a value yet get the shape that was saved. ``elsewhere`` are kept by other ranks.
    """
    pieces: dict[str, LocalPiece] = {}
    for var in variables:
        if var.name in elsewhere or var.name in pieces or is_table(scope, var.name):
            continue
        array = scope.array_of(var.name)
        if array is not None:
            pieces[var.name] = unsliced(var.name, "", array)
            continue
        saved = checkpoint.saved(var.name)
        shape, path = saved.shape, path_of(var.name)
        _check_declared(checkpoint, var, saved)
        piece = Piece(var.name, saved.role, saved.dtype, shape, 0, shape[0], path)
        pieces[var.name] = LocalPiece(var.name, piece)
    return list(pieces.values())


def _check_declared(checkpoint: Source, var: Variable, saved: Saved) -> None:
    """Refuse values of another shape or dtype than the Program declares."""
    if not _is_as_declared(var, saved):
        raise CheckpointError(
            f"{checkpoint.manifest}: {var.name!r} is {saved.dtype}{list(saved.shape)}, expected "
            f"{var.dtype}{list(var.shape)}: the program differs from the one that was saved"
        )


def _is_as_declared(var: Variable, saved: Saved) -> bool:
    fits = len(var.shape) == len(saved.shape) and all(
        declared in (-1, got) for declared, got in zip(var.shape, saved.shape)
    )
    return fits and var.dtype == saved.dtype


def kept_elsewhere(program: Program) -> frozenset[str]:
    """Return the variables that this process never holds, but servers or other trainers do."""
    names: set[str] = set()
    plan = served_plan(program)
    if plan is not None:
        names.update(route.parameter for route in plan.routes if route.remote)
        names.update(name for table in plan.tables for name in table.names)
    if any(is_distributed_lookup(op) for block in program.blocks for op in block.ops):
        names.update(name for table in read_tables(program) for name in table.names)
    return frozenset(names | not_here(program))
