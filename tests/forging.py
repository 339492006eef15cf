"""Files of checkpoints as one makes them who knows the format: with checksums that fit."""

from __future__ import annotations

import json
import os
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
