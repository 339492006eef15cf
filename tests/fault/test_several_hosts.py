"""Sums over several hosts with slow links: bytes counted on the link."""

from __future__ import annotations

import json

import pytest

from tests.support.hosts import hosts, missing
from tests.support.jobs import ROOT

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "never")


@pytest.fixture(scope="module")
def two_hosts():
    with hosts(2, "20mbit") as found:
        yield found


def measured(two_hosts, per_host):
    out = two_hosts.run(per_host, "-m", "mpi4py", str(ROOT / "tests" / "support" / "hosts_sum.py"))
    return json.loads(next(line for line in out.splitlines() if line.startswith("{")))


def test_two_levels_send_local_size_times_fewer_bytes(two_hosts):
    found = measured(two_hosts, (2, 2))
    ways = found["ways"]
    assert found["nodes"] == "2 nodes of 2 ranks"
    assert ways["flat"] == pytest.approx(2.0, rel=0.1)
    for name in ("hierarchical", "not shared"):
        assert ways[name] == pytest.approx(1.0, rel=0.1)


def test_hosts_of_different_sizes(two_hosts):
    found = measured(two_hosts, (1, 3))
    assert found["nodes"] == "2 nodes of 1 to 3 ranks"
    assert found["ways"]["flat"] == pytest.approx(1.5, rel=0.1)
    assert found["ways"]["hierarchical"] == pytest.approx(1.0, rel=0.1)
