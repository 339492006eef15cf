"""Writing the manifest: the last file of a checkpoint, which joins the parts.

HDF5 tools see each variable in it as one virtual dataset over the parts, under its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.base.errors import CheckpointError
from hpcdist.base.hdf5 import h5py
from hpcdist.checkpoint.layout import MANIFEST, conflict, path_of
from hpcdist.checkpoint.metadata import Manifest, Part, PartFile, Piece, TablePart, to_json
from hpcdist.checkpoint.plan import Saved, variables_of
from hpcdist.checkpoint.write import add_facts, finish, new_file


def joined(
    parts: Sequence[tuple[PartFile, Part]], trainers: Sequence[Any] = (), extra: object = None
) -> Manifest:
    """Return the manifest of parts; CheckpointError if they are not of one checkpoint."""
    first = parts[0][1]
    for file, part in parts:
        if (part.step, part.program) != (first.step, first.program):
            raise CheckpointError(
                f"{file.file}: holds step {part.step} of program {part.program[:8]}, expected step "
                f"{first.step} of program {first.program[:8]} as in {parts[0][0].file}"
            )
    return Manifest(
        first.step,
        first.program,
        tuple(file for file, _ in parts),
        tuple(p for _, part in parts for p in part.pieces),
        tuple(i for i, (_, part) in enumerate(parts) for _ in part.pieces),
        tuple(t for _, part in parts for t in part.tables),
        tuple(i for i, (_, part) in enumerate(parts) for _ in part.tables),
        tuple(trainers),
        extra,
    )


def check_names(names: Sequence[str]) -> None:
    """Raise CheckpointError if HDF5 cannot hold datasets of these names side by side."""
    pair = conflict(list(names))
    if pair is not None:
        raise CheckpointError(
            f"variables {pair[0]!r} and {pair[1]!r} cannot be saved together: in HDF5 one would "
            "be the group of the other; rename one of them"
        )


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest under ``path``; with it, and not before, the checkpoint exists."""
    variables = variables_of(manifest.pieces, str(path))
    facts = to_json(manifest)
    with new_file(path) as (disk, file):
        for saved in variables.values():
            _add_variable(file, manifest, saved)
        for name in dict.fromkeys(table.name for table in manifest.tables):
            _add_table(file, manifest, name)
        attrs = {
            "content": "checkpoint",
            "step": manifest.step,
            "program": manifest.program,
            "parts": [part.file for part in manifest.files],
        }
        offset = add_facts(file, facts, attrs)
        file.close()
        disk.sync()
        finish(disk.descriptor, facts, offset, ())


def _add_variable(file: Any, manifest: Manifest, saved: Saved) -> None:
    dtype = np.dtype(saved.dtype)
    layout = h5py.VirtualLayout(saved.shape, dtype)
    for i in saved.pieces:
        piece = manifest.pieces[i]
        source = manifest.files[manifest.homes[i]].file
        rows = slice(0, piece.whole[0]) if piece.copy else slice(piece.begin, piece.end)
        if rows.start < rows.stop:
            layout[rows] = _source(source, piece.path, piece.shape, dtype)
    dataset = file.create_virtual_dataset(path_of(saved.name), layout, fillvalue=_absent(dtype))
    dataset.attrs.update(variable_attrs(saved.name, saved.role, dtype, manifest))


def _source(file: str, path: str, shape: tuple[int, ...], dtype: object) -> Any:
    """Return the dataset of a part; in such names HDF5 takes % for the beginning of a pattern."""
    return h5py.VirtualSource(file.replace("%", "%%"), path.replace("%", "%%"), shape, dtype)


def variable_attrs(name: str, role: str, dtype: Any, of: Manifest | Part) -> dict[str, Any]:
    """Return the attributes of a variable that people and tools see."""
    attrs = {"name": name.replace("\0", "%00"), "role": role, "dtype": np.dtype(dtype).name}
    return {**attrs, "step": of.step, "program": of.program}


def _absent(dtype: Any) -> Any:
    """Return the fill value that HDF5 tools show for rows whose part is missing."""
    if dtype.kind == "f":
        return np.nan
    return np.iinfo(dtype).max if dtype.kind in "iu" else 0


def _add_table(file: Any, manifest: Manifest, name: str) -> None:
    parts = [
        (manifest.files[home].file, table)
        for home, table in zip(manifest.table_homes, manifest.tables)
        if table.name == name
    ]
    total = sum(table.count for _, table in parts)
    first = parts[0][1]
    for member, dataset, dtype, columns in _members(first):
        width = () if columns is None else (columns.stop - columns.start,)
        layout = h5py.VirtualLayout((total, *width), dtype)
        begin = 0
        for source, table in parts:
            if table.count:
                stored = {name: shape for name, _, shape in table.datasets}[dataset]
                virtual = _source(source, f"{table.path}/{dataset}", stored, dtype)
                if columns is not None:
                    virtual = virtual[:, columns]
                layout[begin : begin + table.count] = virtual
            begin += table.count
        fill = _absent(np.dtype(dtype))
        joined = file.create_virtual_dataset(f"{path_of(name)}/{member}", layout, fillvalue=fill)
        role = "parameter" if member in ("ids", "rows") else "optimizer"
        joined.attrs.update(variable_attrs(name, role, dtype, manifest))


def _members(table: TablePart) -> Iterator[tuple[str, str, str, slice | None]]:
    """Yield (name, dataset, dtype, columns) of what makes up a table."""
    yield "ids", "ids", "int64", None
    names = [str(n) for n in table.facts.get("state_names", [])]
    if table.row_bytes:
        yield "rows", "rows", "uint8", slice(0, table.row_bytes)
        if names:
            yield "state", "state", "uint8", slice(0, table.state_bytes)
        names = []
    else:
        yield "rows", "rows", "float32", slice(0, table.dim)
    width = table.state_width // max(1, len(names))
    for i, name in enumerate(names):
        yield name, "state", "float32", slice(i * width, (i + 1) * width)
    if table.metadata:
        yield "metadata", "metadata", "uint32", slice(0, len(table.metadata))


def part_entry_attrs(piece: Piece, part: Part) -> dict[str, Any]:
    """Return the attributes of a piece that people and tools see."""
    rows: dict[str, Any] = {}
    if piece.shape != piece.whole:
        rows = {"begin": piece.begin, "end": piece.end, "whole_shape": piece.whole}
    return {**variable_attrs(piece.name, piece.role, piece.dtype, part), **rows}


def part_name(
    kind: str, index: int | None, count: int, attempt: int, manifest: str = MANIFEST
) -> str:
    """Return the name of the file of writer ``index`` of ``count`` servers or trainers.

    It differs for every attempt at the same checkpoint. Without ``index`` all write the file.
    """
    writer = f"{kind}s" if index is None else f"{kind}-{index}"
    return f"{prefix_of(manifest)}{writer}-of-{count}.{attempt}.h5"


def prefix_of(manifest: str) -> str:
    """Return the common prefix of the names of a manifest's parts."""
    return "" if manifest == MANIFEST else f"{manifest}."
