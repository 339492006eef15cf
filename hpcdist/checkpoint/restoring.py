"""Restoring: every rank reads the values that it needs, whichever rank saved them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcdist.base.checks import checked_path
from hpcdist.base.errors import CheckpointError
from hpcdist.base.trace.events import EventKind
from hpcdist.base.trace.position import here
from hpcdist.base.trace.recorder import recorder
from hpcdist.checkpoint.checkpoint import Checkpoint, latest
from hpcdist.checkpoint.described import differences, listed
from hpcdist.checkpoint.divided import OWN, SAME, name_of_own, taken_up
from hpcdist.checkpoint.kept import Kept, LocalPiece
from hpcdist.checkpoint.layout import MANIFEST, path_of
from hpcdist.checkpoint.local import check_loadable, check_table, counted, load_shards, load_table
from hpcdist.checkpoint.partial import FittingShards, fitting
from hpcdist.checkpoint.ranks import together, with_the_living
from hpcdist.checkpoint.recent import note
from hpcdist.checkpoint.resume_state import Reading, check_state, load_state
from hpcdist.checkpoint.saving import wait
from hpcdist.checkpoint.serving import CHECK, LOAD

logger = logging.getLogger("hpcdist.checkpoint")
SAVED, SCRIPT = "saved", "script"  # whose learning rates count


@dataclass(frozen=True)
class Restored:
    """What was restored: after which step it was saved, the user's ``extra``, and from where.

    With ``partial``, ``taken`` says what of each variable was, and ``left`` why others were not.

    Examples:
        >>> import tempfile
        >>> out = fluid.layers.fc(fluid.data("x", [None, 3]), 1)
        >>> exe = fluid.Executor()
        >>> results = exe.run(fluid.default_startup_program())
        >>> path = fluid.checkpoint.save(exe, tempfile.mkdtemp(), 7, extra={"rate": 0.1})
        >>> found = fluid.checkpoint.restore(exe, path.parent, partial=True)
        >>> found.step, found.extra, found.taken, found.left
        (7, {'rate': 0.1}, {'fc_0.w_0': 'whole', 'fc_0.b_0': 'whole'}, {})
    """

    step: int
    extra: Any
    path: Path
    taken: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)


@recorder.span(EventKind.CHECKPOINT, "restore a checkpoint")
@with_the_living
def restore(
    kept: Kept,
    dirname: str | Path,
    *,
    reader: Reading | None = None,
    partial: bool = False,
    rates: str = SAVED,
) -> Restored | None:
    """Take up a saved job; return what it was, or None if there is no checkpoint yet.

    Every trainer calls this; servers are asked. The options, and the errors, are those of
    `hpcdist.checkpoint.restore`. When it fails nothing has changed on any rank, unless damaged data
    is found before the first step: a job that has trained reads twice, and compares all checksums
    first.
    """
    if rates not in (SAVED, SCRIPT):
        raise CheckpointError(f"rates: expected {SAVED!r} or {SCRIPT!r}, got {rates!r}")
    checked_path("dirname", dirname)
    peers = kept.peers
    wait()
    (directory, *_) = together(
        peers, lambda: _chosen(Path(dirname)) if peers.trainer == 0 else None
    )
    note(dirname)
    if directory is None:
        return None

    leave = sorted(kept.rates) if rates == SCRIPT else []
    request = {"path": str(Path(directory).resolve()), "partial": partial, "leave": leave}
    opened: list[tuple[Checkpoint, FittingShards]] = []
    tables = [] if peers.servers else kept.tables

    def check() -> list[Any]:
        checkpoint = stack.enter_context(Checkpoint(directory))
        _check_described(checkpoint, kept, partial=partial, rates=rates, tell=peers.trainer == 0)
        reports = []
        if peers.trainer == 0:
            reports = peers.ask({"do": CHECK, "data": here.step > 0, **request})
        kept.check(checkpoint)
        pieces = kept.wanted(checkpoint, leave, partial=partial)
        fit = FittingShards(tuple(_divided(checkpoint, pieces, kept)), tuple(tables), {}, {})
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
        load_shards(checkpoint, fit.pieces, kept.values)
        for table in fit.tables:
            load_table(checkpoint, table, peers.trainer, peers.trainers)
        facts, file = checkpoint.facts, str(checkpoint.manifest)
        counted = load_state(facts.trainers, peers.trainer, kept, reader, file)
        return [facts.step, facts.extra, counted]

    with ExitStack() as stack:
        checked = together(peers, check)  # on all ranks, before anything changes on one
        taken, left = _report(opened[0][0], checked, kept) if partial else ({}, {})
        step, extra, counted = together(peers, load)[peers.trainer]
    together(peers, lambda: kept.resume(counted))
    return Restored(step, extra, Path(directory), taken, left)


def _check_described(
    checkpoint: Checkpoint, kept: Kept, *, partial: bool, rates: str, tell: bool
) -> None:
    """Refuse another network, with all differences; warn of other numbers, naming both."""
    saved, now = checkpoint.facts.described, kept.described
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
    checkpoint: Checkpoint, checked: Sequence[Any], kept: Kept
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
    known = kept.names
    left |= {n: "not in the program" for n in names if n not in known and n not in taken}
    return taken, {name: why for name, why in left.items() if name not in taken}


def _chosen(directory: Path) -> str | None:
    if (directory / MANIFEST).exists():
        return str(directory)
    checkpoint = latest(directory)
    return None if checkpoint is None else str(checkpoint)


def _divided(
    checkpoint: Checkpoint, variables: Sequence[LocalPiece], kept: Kept
) -> list[LocalPiece]:
    """Restore what trainers divide as this one's share of it, whoever had saved which."""
    kinds, counter, peers = kept.individual(), kept.counter, kept.peers
    numbers = range(max(1, len(checkpoint.facts.trainers)))
    chosen = []
    for h in variables:
        name = h.piece.name
        now = kinds.get(h.local, SAME)
        saved = [own for k in numbers if checkpoint.has(own := name_of_own(name, k))]
        if checkpoint.has(name) and name_of_own(name, 0) not in saved:
            saved.insert(0, name)
        if not saved or (now == SAME and saved == [name]):
            chosen.append(counted(checkpoint, h, counter))
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
