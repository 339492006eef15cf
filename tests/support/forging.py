"""Files of checkpoints as one makes them who knows the format: with checksums that fit."""

from __future__ import annotations

import copy
import json
import os
import random
from pathlib import Path

from hpcdist.checkpoint.layout import HEAD_BYTES, MANIFEST, Head, digest, parse_head
from hpcdist.checkpoint.write import rest_of


def facts_in(path: Path) -> dict:
    """Return what a file says of itself."""
    data = path.read_bytes()
    head = parse_head(data[:HEAD_BYTES], str(path))
    return json.loads(data[head.facts_offset : head.facts_offset + head.facts_bytes])


def write_facts(path: Path, said: object) -> None:
    """Let a file say ``said``, JSON's or its bytes, with checksums that fit."""
    facts = said if isinstance(said, bytes) else json.dumps(said).encode()
    with open(path, "r+b") as file:
        offset = file.seek(0, os.SEEK_END)
        file.write(facts)
        file.flush()
        size = offset + len(facts)
        rest = rest_of(file.fileno(), size, _extents(said, size))
        head = Head(offset, len(facts), digest(facts), size, rest)
        file.seek(0)
        file.write(head.encode())


def forge(directory: Path, change, part: bool = False) -> None:
    """Change what the manifest of a checkpoint, or its first part, says."""
    manifest = directory / MANIFEST
    said = facts_in(manifest)
    if not part:
        change(said)
        write_facts(manifest, said)
        return
    path = directory / said["files"][0]["file"]
    inner = facts_in(path)
    change(inner)
    write_facts(path, inner)
    reseal(directory)


def reseal(directory: Path) -> None:
    """Let the manifest know its first part as it is now."""
    said = facts_in(directory / MANIFEST)
    path = directory / said["files"][0]["file"]
    said["files"][0]["facts"] = parse_head(path.read_bytes()[:HEAD_BYTES], "").facts
    write_facts(directory / MANIFEST, said)


def _extents(said: object, size: int) -> list[tuple[int, int]]:
    try:
        stored = said["stored"].values()
        found = [e for s in stored for e in zip(s["offsets"], s["sizes"])]
        return [(int(o), int(n)) for o, n in found if o >= 0 and n > 0 and o + n <= size]
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return []


# -- by chance -------------------------------------------------------------------------------------
NASTY = [
    None, True, -1, 0, 1, 3, 1 << 31, 1 << 62, 1 << 200, 1e300, 0.5, "", "x", "../x", "\0", "O",
    "\ud800", [], [[]], {}, {"a": []}, "float64", [1], [1 << 61], "A" * 5000,
]  # fmt: skip


def mutated(luck: random.Random, said):
    """Change a few places of plain data."""
    said = copy.deepcopy(said)
    for _ in range(luck.choice([1, 1, 1, 2, 5])):
        at, way = said, []
        while isinstance(at, (dict, list)) and at and (not way or luck.random() < 0.8):
            key = luck.choice(list(at) if isinstance(at, dict) else range(len(at)))
            way.append((at, key))
            at = at[key]
        if not way:
            break
        holder, key = way[-1]
        kind = luck.random()
        if kind < 0.15:
            del holder[key]
        elif kind < 0.3 and isinstance(holder, list):
            holder.append(copy.deepcopy(at))
        elif kind < 0.45 and type(at) is int:
            holder[key] = at + luck.choice([-1, 1, 2, 512, -512])
        else:
            holder[key] = luck.choice(NASTY)
    return said


def damaged(luck: random.Random, data: bytes) -> bytes:
    """Change a few places of a file: bits, numbers, words; leave some out, or bring some in."""
    found = bytearray(data)
    for _ in range(luck.choice([1, 1, 1, 2, 5, 30])):
        at = luck.randrange(len(found) + 1)
        end = at + luck.randrange(1, 40)
        kind = luck.randrange(5)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << luck.randrange(8)
        elif kind == 1:
            del found[at : luck.choice([end, len(found)])]
        elif kind == 2:
            found[at:at] = luck.randbytes(end - at)
        elif kind == 3:
            number = luck.choice([-1, 1 << 62, -(1 << 63), 1 << 31, 0])
            found[at : at + 8] = number.to_bytes(8, "little", signed=True)
        else:
            found[at : at + 1] = luck.choice([b"nan", b"1e999", b"-9", b"\xff", b'"', b"9" * 400])
    return bytes(found)
