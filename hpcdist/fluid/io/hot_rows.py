"""The rows of a table that are shown most, saved by themselves: what a server's cache holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from hpcdist.base.errors import CheckpointError
from hpcdist.checkpoint.kept import Arrays
from hpcdist.checkpoint.layout import MANIFEST
from hpcdist.checkpoint.ranks import saved_by_first, together
from hpcdist.checkpoint.rows import Choice, hottest
from hpcdist.checkpoint.serving import HOTTEST
from hpcdist.executor.control import ProgramPeers
from hpcdist.executor.scope import global_scope
from hpcdist.fluid.io.save_alone import save_rows
from hpcdist.graph.program import Program
from hpcdist.runtime.kept.description import fingerprint
from hpcdist.runtime.kept.peers import program_peers
from hpcdist.runtime.kept.variables import tables_of


def save_hot_rows(
    dirname: str | Path, main_program: Program, table: str, choice: Choice, share: float
) -> int:
    """Save the chosen rows that are shown most, ``share`` of them; return how many. Collective.

    Of rows that are shown as often all are saved, or none. They are looked up where they lie, as
    those of an inference model. CheckpointError for a table that counts no shows.
    """
    peers = program_peers()
    ask = partial(_ask, peers, main_program, table)

    def find() -> list[float]:
        if peers.trainer:
            return []
        total = sum(int(one[0]) for one in ask(choice, 0))
        count = math.ceil(share * total)
        shows = sorted((show for one in ask(choice, count) for show in one[1:]), reverse=True)
        least = shows[count - 1] if count else math.inf
        return [least, sum(int(one[0]) for one in ask(replace(choice, least_show=least), 0))]

    least, count = together(peers, find)[0]
    chosen = {table: replace(choice, least_show=least)}

    def save() -> None:
        label = fingerprint(main_program)
        save_rows(peers, Path(dirname), MANIFEST, [], Arrays(), label, [table], chosen)

    saved_by_first(peers, Path(dirname), None, save)
    return int(count)


def _ask(
    peers: ProgramPeers, program: Program, table: str, choice: Choice, count: int
) -> Sequence[Sequence[Any]]:
    if peers.servers:
        return peers.ask({"do": HOTTEST, "table": table, "choice": asdict(choice), "count": count})
    if peers.trainers > 1:
        raise CheckpointError(
            f"table {table!r}: its rows are divided among the trainers, and trainer 0 alone saves "
            "here: start the job with --pservers"
        )
    here = {one.name: one for one in tables_of(peers.program(program), global_scope())}
    if table not in here:
        raise CheckpointError(f"table {table!r} has no rows here: run the startup program first")
    return [hottest(here[table], choice, count)]
