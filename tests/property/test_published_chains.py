"""Chains of published versions, damaged or shuffled: each refused by name, or read right.

HPCDIST_TEST_CHAINS says how many: 2,000 by hand.
"""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from hpcdist.errors import PublicationError
from hpcdist.serving import Lookup, compact
from tests.support.published import random_publication

CHAINS = int(os.environ.get("HPCDIST_TEST_CHAINS", "60"))
IDS = list(range(-25, 25))


def manifests(directory):
    return sorted(path for path in directory.iterdir() if path.suffix == ".json")


def chosen(paths, draw):
    return paths[draw.randint(len(paths))]


def lose(directory, draw):
    path = chosen(sorted(directory.iterdir()), draw)
    path.unlink()
    return {path}


def flip(directory, draw):
    path = chosen([p for p in sorted(directory.iterdir()) if p.stat().st_size], draw)
    data = bytearray(path.read_bytes())
    data[draw.randint(len(data))] ^= 1 << draw.randint(8)
    path.write_bytes(data)
    return {path}


def tear(directory, draw):
    path = chosen([p for p in sorted(directory.iterdir()) if p.stat().st_size], draw)
    path.write_bytes(path.read_bytes()[: draw.randint(path.stat().st_size)])
    return {path}


def exchange(directory, draw):
    one, other = chosen(manifests(directory), draw), chosen(manifests(directory), draw)
    texts = one.read_bytes(), other.read_bytes()
    one.write_bytes(texts[1])
    other.write_bytes(texts[0])
    return {one, other} if one != other else set()


def repeat(directory, draw):
    one, other = chosen(manifests(directory), draw), chosen(manifests(directory), draw)
    number = int(other.name[:9]) + draw.randint(0, 2)
    copy = directory / f"{number:09d}.{one.name.split('.')[1]}.json"
    if copy == one:
        return set()
    shutil.copy(one, copy)
    return {copy}


def take_foreign(directory, draw):
    beside = directory.parent / "foreign"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    random_publication(beside, draw, 3)
    stranger = chosen(manifests(beside)[1:], draw)
    for path in beside.iterdir():
        if path.name[:9] == stranger.name[:9]:
            shutil.copy(path, directory / path.name)
    return {directory / stranger.name}


WAYS = (lose, flip, tear, exchange, repeat, take_foreign)


@pytest.mark.parametrize("seed", range(CHAINS))
def test_a_chain_that_is_damaged_is_refused_by_name_or_read_right(tmp_path, seed, caplog):
    draw = np.random.RandomState(seed)
    directory = tmp_path / "published"
    directory.mkdir()
    made = random_publication(directory, draw, draw.randint(2, 7))
    newest = len(made.versions)
    touched = set()
    for _ in range(draw.randint(0, 3)):
        touched |= WAYS[draw.randint(len(WAYS))](directory, draw)
    try:
        with Lookup(directory, watch=False) as lookup:
            assert (lookup.pull("t", IDS) == made.expected(lookup.version, IDS)).all()
            assert lookup.version <= newest
            if not touched:
                assert lookup.version == newest
            if lookup.version < newest and manifests(directory)[-1].name[:9] >= f"{newest:09d}":
                assert lookup.refused
            rows, version = lookup.pull("t", IDS), lookup.version
    except PublicationError as error:
        assert touched, error
        named = any(path.name[:9] in str(error) for path in touched)
        assert named or not manifests(directory), error  # without any there is none to name
        return
    compact(directory)
    with Lookup(directory, watch=False) as again:  # the same twice, and as one base
        assert again.version == version
        assert (again.pull("t", IDS) == rows).all()
