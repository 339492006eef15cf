"""What rank 0 prints at the start: a line, or tables in the frame of Fluid's launcher. Pure."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpcdist.comm.cluster import Cluster
from hpcdist.launch.words import counted, spans

if TYPE_CHECKING:  # only jobs with servers and tables load them
    from hpcdist.ps.table_metadata import TableStatistics

NAME_WIDTH = 40
VALUE_WIDTH = 45
SHOWN_END = 41
SHOWN_HOSTS = 4


def roster(cluster: Cluster, hosts: Sequence[str]) -> str:
    """Say in one line who takes part; ``hosts`` has the name of each rank's host.

    >>> roster(Cluster((0, 1), (2,)), ["a", "a", "b"])
    'hpcdist: 3 ranks on 2 hosts (a, b): 2 trainers (ranks 0-1), 1 server (rank 2)'
    """
    names = list(dict.fromkeys(hosts))
    more = ", ..." if len(names) > SHOWN_HOSTS else ""
    where = ", ".join(names[:SHOWN_HOSTS]) + more
    if len(names) > 1:
        where = f"{len(names)} hosts ({where})"
    roles = [
        f"{counted(len(ranks), noun)} ({'rank' if len(ranks) == 1 else 'ranks'} {spans(ranks)})"
        for noun, ranks in (("trainer", cluster.trainers), ("server", cluster.servers))
        if ranks
    ]
    return f"hpcdist: {counted(len(hosts), 'rank')} on {where}: {', '.join(roles)}"


def arguments(options: Mapping[str, object]) -> str:
    """Return the "Configuration Arguments" block, sorted by name."""
    lines = [
        f"{name}: {'' if value is None else value}".rstrip() for name, value in options.items()
    ]
    head = "-----------  Configuration Arguments -----------"
    return "\n".join([head, *sorted(lines), "-" * len(head)])


def environment(variables: Mapping[str, str]) -> str:
    """Return the framed table of variables; of a long value the end is shown."""
    width = NAME_WIDTH + 2 + VALUE_WIDTH
    rows = [(name, _end_of(value)) for name, value in variables.items()]
    lines = [
        f"+{'=' * width}+",
        _row("Distributed Envs", "Value"),
        f"+{'-' * width}+",
        *(_row(name, value) for name, value in rows),
        f"+{'=' * width}+",
    ]
    return "\n".join("    " + line for line in lines)


def of_tables(server: str, tables: Sequence[TableStatistics]) -> str:
    """Return the statistics of a server's distributed tables, as a table of text.

    The payload is what ids, rows and optimizer state take by themselves. Each line says whose it
    is: lines of servers that end together may come to a terminal in any order.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    table.add_column(f"hpcdist: {server}", no_wrap=True)
    on_disk = any(t.disk_bytes for t in tables)
    disk = ("on disk",) if on_disk else ()
    for heading in ("rows", "memory", *disk, "payload", "rows pulled", "rows pushed"):
        table.add_column(heading, justify="right", no_wrap=True)
    for t in tables:
        disk = (_size(t.disk_bytes),) if on_disk else ()
        sizes = f"{t.rows:,}", _size(t.nbytes), *disk, _size(t.payload_bytes)
        table.add_row(
            f"hpcdist: {server}: {t.name}", *sizes, f"{t.rows_pulled:,}", f"{t.rows_pushed:,}"
        )
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.strip() for line in text.splitlines())


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:,.1f} KiB"


def _row(name: str, value: str) -> str:
    return f"|{name:>{NAME_WIDTH}}  {value:^{VALUE_WIDTH}}|"


def _end_of(value: str) -> str:
    return value if len(value) < VALUE_WIDTH else "... " + value[-SHOWN_END:]
