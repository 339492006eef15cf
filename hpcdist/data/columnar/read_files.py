"""`data.read`: checks arguments, opens files, and makes the `Rows` to iterate over."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdist.base import settings
from hpcdist.base.errors import DataError
from hpcdist.base.keywords import names_arguments
from hpcdist.data.columnar.arguments import (
    Columns,
    at_least,
    by_column,
    is_integer,
    options_of,
    refuse_unread,
    rules_of,
    targets_of,
    typed,
)
from hpcdist.data.columnar.blocks import Policy
from hpcdist.data.columnar.decoding import Decoding, decoders_of
from hpcdist.data.columnar.files import expanded, filter_of, look_into
from hpcdist.data.columnar.formats import format_of
from hpcdist.data.columnar.images import Images
from hpcdist.data.columnar.order import Shuffle
from hpcdist.data.columnar.rows import Paths, Rows

_IMAGES_WINDOW = 1 << 12  # rows: images are large


def _window(decoders: Iterable[Any]) -> int:
    """Return the default number of rows of a window."""
    images = any(isinstance(decoder, Images) and decoder.folder is None for decoder in decoders)
    return _IMAGES_WINDOW if images else Shuffle.window


def read(
    paths: Paths,
    columns: Columns | None = None,
    *,
    batch: int,
    feed_list: Sequence[Any] | None = None,
    shuffle: int | None = None,
    window: int | None = None,
    lanes: int = 1,
    drop_last: bool = False,
    filters: Any = None,
    nulls: Any = "error",
    buckets: Mapping[str, int] | None = None,
    types: Mapping[str, Any] | None = None,
    decode: Mapping[str, Any] | None = None,
    workers: int = 0,
    on_bad: str = "error",
    retries: int = 3,
    certificate: str | os.PathLike[str] | None = None,
    format: str | None = None,
    names: Sequence[str] | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    strip: bool = False,
) -> Rows:
    """Read Parquet, Arrow, HDF5, .npy, TFRecord or text files in batches of ``batch`` rows.

    ``paths``: names or patterns, all of one format. ``columns``: names; or name of a variable ->
    its column, or columns that stand side by side, [rows, columns]; default all. ``feed_list``:
    variables, which the arrays then have the dtypes and shapes of; a variable that ``columns`` does
    not mention is the column of its name.

    ``shuffle``: a seed; None keeps the order of the files. ``window``: rows that are shuffled among
    themselves (blocks of the files are shuffled first), by default 131072, where images are decoded
    4096. ``lanes``: parts of an epoch that every
    batch takes rows from, so that `Rows.shard` need not read all files; a divisor of ``batch``.

    ``filters``: rows to read, [("age", ">=", 18)]. ``nulls``: "error", or a number for them, or a
    dict by column. ``buckets``: column of texts -> how many numbers to hash it to. ``types``: of
    columns of CSV and JSON, such as "float32", or a dtype; "hex" for ids in hexadecimal digits, in
    any format. ``decode``: column -> `Images`, a `Vocabulary`, or any function from a text to
    integers, in as many processes as ``workers`` says, or with 0 in a thread. ``on_bad``: "error",
    or "skip" rows that cannot be read. ``retries``: of a read that the file system fails.
    ``certificate``: directory to write into which rows were used (default: HPCDIST_CERTIFICATE).

    ``format``: name of the format, where the names of the files do not tell. Of delimited text:
    ``names`` of the columns, if the first line has values; ``delimiter`` between values (backslash
    s plus: any spaces); ``encoding``, if it is not UTF-8; ``strip`` spaces around values.

    Raises DataError naming what is wrong with an argument or a file.
    """
    size = at_least(1, "batch", batch)
    lanes = at_least(1, "lanes", lanes)
    if size % lanes:
        raise DataError(f"data.read: lanes must divide the batch of {size} rows, got {lanes}")
    if on_bad not in ("error", "skip"):
        raise DataError(f"data.read: on_bad must be 'error' or 'skip', got {on_bad!r}")
    if shuffle is not None and not is_integer(shuffle):
        raise DataError(f"data.read: shuffle must be a seed, an integer, got {shuffle!r}")
    files = expanded(paths)
    kind = format_of(files, format, delimiter)
    options = options_of(kind, names, delimiter, encoding, strip)
    only = filter_of(filters)
    targets = targets_of(kind, files[0], columns, feed_list, options)
    needed = dict.fromkeys(name for target in targets for name in target.columns)
    decoders = decoders_of(decode or {}, targets)
    declared = by_column("types", types)
    hexadecimal = {name for name, kind_of in declared.items() if kind_of == "hex"}
    rules = rules_of(nulls, buckets, decoders, hexadecimal)
    needed |= dict.fromkeys(only.columns if only else ())
    refuse_unread(needed, rules, declared)
    as_text = dict.fromkeys(hexadecimal, "string") if kind.typed and kind.encoded else {}
    declared = {n: kind_of for n, kind_of in declared.items() if n not in hexadecimal} | as_text
    texts = [*rules.buckets, *decoders]
    opened = typed(kind, files, list(needed), declared, targets, texts, options)
    policy = Policy(on_bad == "skip", at_least(0, "retries", retries))
    index = look_into(files, opened, list(needed), only, policy.retries)
    directory = settings.CERTIFICATE.read() if certificate is None else os.fspath(certificate)
    rows = Rows(
        index,
        opened,
        targets,
        rules,
        only,
        Shuffle(
            None if shuffle is None else int(shuffle),
            at_least(1, "window", _window(decoders.values()) if window is None else window),
            lanes,
            size // lanes if lanes > 1 else 1,
            index.runs if shuffle is not None else (),
        ),
        size,
        drop_last,
        policy,
        Path(directory) if directory else None,
        Decoding(decoders, targets, index, at_least(0, "workers", workers)) if decoders else None,
    )
    if not len(rows):
        raise DataError(
            f"data.read: no batch to read: {rows.rows} rows in {index.words}"
            + (f" pass {only.words}" if only else "")
            + (f", and drop_last leaves out a batch of less than {size}" if drop_last else "")
        )
    return rows


read = names_arguments(read, "data.read")
