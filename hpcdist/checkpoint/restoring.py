"""Restoring: every rank reads the values that it needs, whichever rank saved them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcdist.base.errors import CheckpointError
from hpcdist.base.trace.events import EventKind
from hpcdist.base.trace.position import here
from hpcdist.base.trace.recorder import recorder
from hpcdist.checkpoint.checkpoint import Checkpoint, latest
from hpcdist.checkpoint.described import describe, differences, listed
from hpcdist.checkpoint.divided import OWN, SAME, divisions, name_of_own, taken_up
from hpcdist.checkpoint.layout import MANIFEST, path_of
from hpcdist.checkpoint.local import check_loadable, check_table, counted, load_shards, load_table
from hpcdist.checkpoint.local_shards import (
    LocalPiece,
    array_of,
    individual,
    persistables,
    program_of_job,
    roles_of,
    tables_of,
    unsliced,
)
from hpcdist.checkpoint.metadata import RATE, Piece
from hpcdist.checkpoint.partial import FittingShards, fitting
from hpcdist.checkpoint.plan import Saved
from hpcdist.checkpoint.ranks import peers_here, together, with_the_living
from hpcdist.checkpoint.recent import note
from hpcdist.checkpoint.resume_state import Reading, check_state, load_state
from hpcdist.checkpoint.saving import wait
from hpcdist.checkpoint.serving import CHECK, LOAD
from hpcdist.checkpoint.sources import Source
from hpcdist.executor.control import Peers
from hpcdist.executor.executor import Executor
from hpcdist.executor.merging import merged_steps
from hpcdist.executor.scope import Scope, global_scope
from hpcdist.graph.op_role import MERGE_COUNTER
from hpcdist.graph.program import Program
from hpcdist.graph.variable import Variable
from hpcdist.ops.optimize.dgc import COUNTER
from hpcdist.ps.table import SparseTable
from hpcdist.transpiler.compressed import compressed_updates
from hpcdist.transpiler.hybrid import served_plan
from hpcdist.transpiler.plan import trainer_plan
from hpcdist.transpiler.sharded_updates import not_here
from hpcdist.transpiler.table_metadata import is_distributed_lookup, read_tables

logger = logging.getLogger("hpcdist.checkpoint")
SAVED, SCRIPT = "saved", "script"  # whose learning rates count


@dataclass(frozen=True)
class Restored:
    """What was restored: after which step it was saved, the user's ``extra``, and from where.

    With ``partial``, ``taken`` says what of each variable was, and ``left`` why others were not.
    """

    step: int
    extra: Any
    path: Path
    taken: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)


@recorder.span(EventKind.CHECKPOINT, "restore a checkpoint")
@with_the_living
def restore(
    executor: Executor,
    dirname: str | Path,
    main_program: Program | None = None,
    *,
    reader: Reading | None = None,
    scope: Scope | None = None,
    partial: bool = False,
    rates: str = SAVED,
) -> Restored | None:
    """Take up a saved job; return what it was, or None if there is no checkpoint yet.

    ``dirname`` is a directory of checkpoints, of which the newest complete one is taken, or one
    checkpoint. Every trainer calls this after the startup program, or later, to go back; servers
    are asked. It does not matter how many servers or trainers had saved it, or whether there were
    servers at all. With ``partial`` another network takes up what fits of it, by name. ``rates``:
    whether learning rates that the script sets are those "saved", or the "script"'s.

    Raises CheckpointError, on all trainers, if something is missing or damaged, or if it is of
    another network, with all differences; other numbers are warnings. Then nothing has changed on
    any rank, unless damaged data is found before the first step: a job that has trained reads
    twice, and compares all checksums first.

    Examples:
        >>> import tempfile
        >>> out = fluid.layers.fc(fluid.data("x", [None, 3]), 1)
        >>> exe = fluid.Executor()
        >>> results = exe.run(fluid.default_startup_program())
        >>> directory = tempfile.mkdtemp()
        >>> fluid.checkpoint.restore(exe, directory) is None
        True
        >>> saved = fluid.checkpoint.save(exe, directory, 7)
        >>> fluid.checkpoint.restore(exe, directory).step
        7
    """
    if rates not in (SAVED, SCRIPT):
        raise CheckpointError(f"rates: expected {SAVED!r} or {SCRIPT!r}, got {rates!r}")
    peers = peers_here()
    wait()
    main = program_of_job(main_program)
    program = peers.program(main)
    scope = scope if scope is not None else global_scope()
    (directory, *_) = together(
        peers, lambda: _chosen(Path(dirname)) if peers.trainer == 0 else None
    )
    note(dirname)
    if directory is None:
        return None

    leave = sorted(n for n, role in roles_of(main).items() if role == RATE and rates == SCRIPT)
    request = {"path": str(Path(directory).resolve()), "partial": partial, "leave": leave}
    opened: list[tuple[Checkpoint, FittingShards]] = []
    tables = [] if peers.servers else tables_of(program, scope)

    def check() -> list[Any]:
        checkpoint = stack.enter_context(Checkpoint(directory))
        _check_described(checkpoint, main, partial=partial, rates=rates, tell=peers.trainer == 0)
        reports = []
        if peers.trainer == 0:
            reports = peers.ask({"do": CHECK, "data": here.step > 0, **request})
        _check_merged(checkpoint, program, peers.trainers)
        _check_compressed(checkpoint, program, peers.trainers)
        variables = [v for v in persistables(program) if v.name not in leave]
        if partial:
            variables = [v for v in variables if _may_fit(checkpoint, v, scope)]
        pieces = wanted(checkpoint, variables, scope, kept_elsewhere(program))
        fit = FittingShards(
            tuple(_divided(checkpoint, pieces, program, peers)), tuple(tables), {}, {}
        )
        if partial:
            fit = fitting(checkpoint, fit.pieces, fit.tables)
        check_loadable(checkpoint, fit.pieces, data=here.step > 0)
        for table in fit.tables:
            check_table(checkpoint, table, peers.trainer, peers.trainers, partial=partial)
        check_state(checkpoint.facts.trainers, reader, str(checkpoint.manifest))
        opened.append((checkpoint, fit))
        return [*reports, [fit.taken, fit.left]]

    def load() -> Any:
        if peers.trainer == 0:
            peers.ask({"do": LOAD, **request})
        ((checkpoint, fit),) = opened
        load_shards(checkpoint, fit.pieces, scope)
        for table in fit.tables:
            load_table(checkpoint, table, peers.trainer, peers.trainers)
        facts, file = checkpoint.facts, str(checkpoint.manifest)
        counted = load_state(facts.trainers, peers.trainer, executor, reader, file)
        return [facts.step, facts.extra, counted]

    with ExitStack() as stack:
        checked = together(peers, check)  # on all ranks, before anything changes on one
        taken, left = _report(opened[0][0], checked, main) if partial else ({}, {})
        step, extra, counted = together(peers, load)[peers.trainer]
    together(peers, lambda: peers.resume(program, counted, scope))
    return Restored(step, extra, Path(directory), taken, left)


def _may_fit(checkpoint: Checkpoint, var: Variable, scope: Scope) -> bool:
    """Return whether there is a value to be replaced, or else a saved one as declared."""
    if array_of(scope, var.name) is not None:
        return True
    return checkpoint.has(var.name) and _is_as_declared(var, checkpoint.saved(var.name))


def _check_described(
    checkpoint: Checkpoint, main: Program, *, partial: bool, rates: str, tell: bool
) -> None:
    """Refuse another network, with all differences; warn of other numbers, naming both."""
    saved, now = checkpoint.facts.described, describe(main)
    if saved is None or now is None:
        return
    found = differences(saved, now)
    if found.network and not partial:
        raise CheckpointError(
            f"{checkpoint.manifest}: the program differs from the one that was saved:"
            f"{listed(found.network)}\nbuild it as it was, or take what fits by name: "
            "restore(..., partial=True)"
        )
    if not tell:
        return
    for what, then, script in found.numbers:
        logger.warning(
            "%s: %s: the script says %s, the checkpoint %s: the script's counts",
            *(checkpoint.manifest, what, script, then),
        )
    for name, then, script in found.rates:
        logger.warning(
            "%s: learning rate %r: the script says %s, the checkpoint %s: %s",
            *(checkpoint.manifest, name, script, then),
            "the script's counts, as rates='script' says"
            if rates == SCRIPT
            else "the checkpoint's counts; for the script's: restore(..., rates='script')",
        )


def _report(
    checkpoint: Checkpoint, checked: Sequence[Any], main: Program
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the names that all ranks together restored, and those left, with saved variables."""
    taken: dict[str, str] = {}
    left: dict[str, str] = {}
    for ranks in checked:
        for rank_taken, rank_left in ranks:
            taken |= rank_taken
            left |= rank_left
    saved = checkpoint.facts.described
    names = saved.variables if saved is not None else checkpoint.variables
    known = {var.name for var in persistables(main)}
    left |= {n: "not in the program" for n in names if n not in known and n not in taken}
    return taken, {name: why for name, why in left.items() if name not in taken}


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


def _chosen(directory: Path) -> str | None:
    if (directory / MANIFEST).exists():
        return str(directory)
    checkpoint = latest(directory)
    return None if checkpoint is None else str(checkpoint)


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
        array = array_of(scope, var.name)
        if array is not None:
            pieces[var.name] = unsliced(var.name, "", array)
            continue
        saved = checkpoint.saved(var.name)
        shape, path = saved.shape, path_of(var.name)
        check_declared(checkpoint, var, saved)
        piece = Piece(var.name, saved.role, saved.dtype, shape, 0, shape[0], path)
        pieces[var.name] = LocalPiece(var.name, piece)
    return list(pieces.values())


def _divided(
    checkpoint: Checkpoint, variables: Iterable[LocalPiece], program: Program, peers: Peers
) -> list[LocalPiece]:
    """Restore what trainers divide as this one's share of it, whoever had saved which."""
    kinds = dict.fromkeys(individual(program), OWN)
    if peers.trainers > 1:
        kinds |= divisions(program, shared=peers.shares_batches)
    numbers = range(max(1, len(checkpoint.facts.trainers)))
    chosen = []
    for h in variables:
        name = h.piece.name
        now = kinds.get(h.local, SAME)
        saved = [own for k in numbers if checkpoint.has(own := name_of_own(name, k))]
        if checkpoint.has(name) and name_of_own(name, 0) not in saved:
            saved.insert(0, name)
        if not saved or (now == SAME and saved == [name]):
            chosen.append(counted(checkpoint, h, trainer_plan(program)))
            continue
        before = checkpoint.saved(saved[0]).divided
        if not before:  # an earlier release's file, which does not say
            before = SAME if len(saved) == 1 else OWN if now == SAME else now
        common = name if checkpoint.has(name) else saved[0]
        taken = taken_up(common, saved, before, now, peers.trainer, peers.trainers)
        if isinstance(taken, str):
            chosen.append(replace(h, piece=replace(h.piece, name=taken, path=path_of(taken))))
        else:
            chosen.append(replace(h, combined=taken))
    return chosen


def check_declared(checkpoint: Source, var: Variable, saved: Saved) -> None:
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


def is_table(scope: Scope, name: str) -> bool:
    """Return whether a variable is, in this scope, a table of rows that are found by id."""
    variable = scope.find_var(name)
    return variable is not None and isinstance(variable.value, SparseTable)


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
