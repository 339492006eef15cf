"""Parses multi-slot text; errors name file, line and slot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from hpcdist.base import settings
from hpcdist.base.errors import DataError
from hpcdist.fluid.multi_slot import kernels
from hpcdist.fluid.multi_slot.pipe import lines_of
from hpcdist.fluid.multi_slot.samples import LINE_ID, Column, Samples, SampleSlot

# Of FLAGS_rpc_deadline: the error about a file comes before other ranks give up waiting.
PATIENCE = 0.8
_POWERS = 10.0 ** np.arange(23)


def samples_of_file(
    path: str, command: str, slots: Sequence[SampleSlot], texts: int = 0
) -> Iterator[Samples]:
    """Yield the samples of a file that goes through a pipe command; see `samples_of`."""
    through = "" if command.strip() in ("", "cat") else f" (through {command!r})"
    patience_s = settings.RPC_DEADLINE.read() / 1000 * PATIENCE
    return samples_of(lines_of(path, command, patience_s), slots, path + through, texts)


def samples_of(
    chunks: Iterable[bytes], slots: Sequence[SampleSlot], source: str, texts: int = 0
) -> Iterator[Samples]:
    """Yield the samples of each chunk of complete lines; ``source`` is what errors call the text.

    Each line begins with ``texts`` texts. The first one is the line's id, which is kept if
    `LINE_ID` is the last of the slots. Raises DataError for the first line that is not so.
    """
    before = 0  # lines of earlier chunks
    for chunk in chunks:
        ended = chunk if not chunk or chunk.endswith(b"\n") else chunk + b"\n"
        parsed = _parsed(ended, slots, source, before, texts)
        before += len(parsed)
        yield parsed


def _parsed(
    text: bytes, all_slots: Sequence[SampleSlot], source: str, before: int, texts: int
) -> Samples:
    slots = [slot for slot in all_slots if slot.is_fed]
    lines = text.count(b"\n")
    are_floats = np.array([slot.dtype == "float32" for slot in slots])
    widths = np.array([slot.width for slot in slots], np.int64)
    most = len(text) // 2 + 1  # a value takes a byte, and one after it
    ints, floats = np.empty(most, np.int64), np.empty(most, np.float32)
    counts = np.empty((lines, len(slots)), np.int32)
    book = np.zeros(6, np.int64)
    array = np.frombuffer(text, np.uint8)
    if texts:
        array, ids = array.copy(), np.empty(len(text), np.uint8)
        id_ends = np.zeros(lines + 1, np.int64)
        kernels.take_texts(array, texts, ids, id_ends, book)
    if not book[kernels.WRONG]:
        kernels.parse(array, are_floats, widths, _POWERS, ints, floats, counts, book)
    if book[kernels.WRONG]:
        raise DataError(
            f"{source}, line {before + book[kernels.LINES] + 1}: {_fault(text, slots, book)}"
        )
    offsets = np.zeros((len(slots), lines + 1), np.int64)
    np.cumsum(counts.T, axis=1, out=offsets[:, 1:])
    begins = np.zeros(len(slots), np.int64)
    for kind in (are_floats, ~are_floats):
        begins[kind] = np.cumsum(offsets[kind, -1]) - offsets[kind, -1]
    out_ints = np.empty(book[kernels.INTS], np.int64)
    out_floats = np.empty(book[kernels.FLOATS], np.float32)
    kernels.spread(ints, floats, counts, are_floats, begins.copy(), out_ints, out_floats)
    columns = []
    for is_float, begin, ends in zip(are_floats, begins, offsets):
        values = out_floats if is_float else out_ints
        columns.append(Column(values[begin : begin + ends[-1]], ends))
    if LINE_ID in all_slots:
        columns.append(Column(ids[: id_ends[-1]].copy(), id_ends))
    return Samples(all_slots, columns)


def _fault(text: bytes, slots: Sequence[SampleSlot], book: np.ndarray) -> str:
    wrong, number, begin = (int(book[k]) for k in (kernels.WRONG, kernels.SLOT, kernels.BEGIN))
    word = (text[begin : begin + 80].split() or [b""])[0].decode(errors="replace")
    if wrong == kernels.MORE:
        return f"expected the end of the line after {len(slots)} slots, got {word!r}"
    if wrong == kernels.HEAD:
        kind = ("an id", "a text")[number]
        return f"expected {kind} after the number 1 (set_parse_ins_id, ...), got {word!r}"
    slot = slots[number]
    faults = {
        kernels.COUNT: f"expected the number of its values, got {word!r}",
        kernels.EMPTY: "it has 0 values: pad it, in the data generator",
        kernels.WIDTH: f"expected {slot.width} values, as the variable's shape says, got {word}",
        kernels.WHOLE: f"expected an integer of 64 bits, got {word!r}",
        kernels.NUMBER: f"expected a finite number, got {word!r}",
        kernels.ENDS: "the line ends before it is complete",
    }
    return f"slot {number} ({slot.name}): {faults[wrong]}"
