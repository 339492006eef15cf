"""Flags by name: types, defaults, and that those of sums are found where they are read."""

from __future__ import annotations

import os

import pytest

from hpcdist.comm.bucket import Fusing
from hpcdist.flags import get_flags, set_flags

MEMORY, GROUPS = "FLAGS_fuse_parameter_memory_size", "FLAGS_fuse_parameter_groups_size"
ORDER, KEPT = "FLAGS_cpu_deterministic", "FLAGS_eager_delete_tensor_gb"


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in (MEMORY, GROUPS, ORDER, KEPT):
        monkeypatch.setenv(name, "")  # so that it is as before when the test ends
        monkeypatch.delenv(name)


def test_what_is_not_set_is_fluids_default():
    assert get_flags([MEMORY, GROUPS, ORDER, KEPT]) == {
        MEMORY: -1.0,
        GROUPS: 1,
        ORDER: False,
        KEPT: 0,
    }


def test_what_is_set_counts():
    set_flags({MEMORY: 32, GROUPS: 50, ORDER: True, KEPT: 1.5})
    assert get_flags((MEMORY, GROUPS, ORDER)) == {MEMORY: 32.0, GROUPS: 50, ORDER: True}
    assert get_flags(KEPT) == {KEPT: 1.5}
    assert Fusing.from_flags(os.environ) == Fusing(32.0, 50)
    set_flags({ORDER: 0})
    assert get_flags(ORDER) == {ORDER: False}


def test_what_is_in_the_environment_counts(monkeypatch):
    monkeypatch.setenv(ORDER, "on")
    assert get_flags(ORDER) == {ORDER: True}
    monkeypatch.setenv(GROUPS, "many")
    with pytest.raises(ValueError, match=f"{GROUPS}: expected int in the environment, got 'many'"):
        get_flags(GROUPS)


@pytest.mark.parametrize(
    ("flags", "kind", "words"),
    [
        ([MEMORY], TypeError, "expected a dict"),
        ({KEPT: 2.0, "FLAGS_check_nan_inf": True}, ValueError, "no flag 'FLAGS_check_nan_inf'"),
        ({KEPT: 2.0, MEMORY: "32"}, TypeError, "expected float, got '32'"),
        ({GROUPS: True}, TypeError, "expected int, got True"),
        ({GROUPS: 1.5}, TypeError, "expected int, got 1.5"),
        ({ORDER: "1"}, TypeError, "expected bool, got '1'"),
    ],
)
def test_what_does_not_fit_changes_nothing(flags, kind, words):
    with pytest.raises(kind, match=words):
        set_flags(flags)
    assert get_flags(KEPT) == {KEPT: 0.0}


@pytest.mark.parametrize(("names", "kind"), [(3, TypeError), ("FLAGS_unknown", ValueError)])
def test_what_cannot_be_asked(names, kind):
    with pytest.raises(kind):
        get_flags(names)
