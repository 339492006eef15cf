"""Saved in one mode, restored and saved in the next: not a bit may change on the way."""

from __future__ import annotations

import pytest

import hpcdist as fluid
from tests.mpi.chain_jobs import (
    ALONE,
    OPTIMIZERS,
    STEP,
    bits,
    dense_net,
    job,
    run,
    table_net,
)

pytestmark = pytest.mark.mpi(min_size=4)
CHAIN = [(2, 2), (3, 0), ALONE, (1, 3), (2, 1), (4, 0), (3, 1)]  # (trainers, servers)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_and_optimizer_state_through_all_modes(mpi_tmp_path, name):
    optimizer, root = OPTIMIZERS[name], mpi_tmp_path
    run(CHAIN[0], job(dense_net, optimizer, root / "0"))
    first = bits(root / "0")
    assert {"fc_0.w_0", "embedding_0.w_0", "@LR_DECAY_COUNTER@"} < first.keys()
    assert sum(name.startswith("embedding_0.w_0_") for name in first) == {"Momentum": 1}.get(
        name, 4 if name == "Adam" else 2
    )
    for k, shape in enumerate(CHAIN[1:], 1):
        run(shape, job(dense_net, optimizer, root / str(k), root / str(k - 1)))
        assert bits(root / str(k)) == first, shape


@pytest.mark.parametrize("name", ["Adam", "Momentum"])
def test_rows_of_tables_and_all_else_with_servers_and_without(mpi_tmp_path, name):
    root = mpi_tmp_path
    optimizer = {
        "Adam": lambda rate: fluid.optimizer.Adam(rate, lazy_mode=True),
        "Momentum": OPTIMIZERS["Momentum"],
    }[name]
    run((2, 2), job(table_net, optimizer, root / "0"))
    first = bits(root / "0")
    assert "embedding_0.w_0 state" in first
    hybrid = (2, 2, "collective"), (3, 1, "collective")
    for k, shape in enumerate([hybrid[0], (1, 3), hybrid[1], ALONE, hybrid[0], (3, 1), ALONE], 1):
        run(shape, job(table_net, optimizer, root / str(k), root / str(k - 1)))
        assert bits(root / str(k)) == first, shape


def test_the_same_training_follows_from_either_end_of_a_chain(mpi_tmp_path):
    optimizer, root = OPTIMIZERS["Adam"], mpi_tmp_path
    run((2, 2), job(dense_net, optimizer, root / "0"))
    for k, shape in enumerate([(2, 0), ALONE], 1):
        run(shape, job(dense_net, optimizer, root / str(k), root / str(k - 1)))
    ends = [
        run((2, 2), job(dense_net, optimizer, root / f"on-{k}", root / k, STEP + 4))
        for k in ("0", "2")
    ]
    assert ends[0] == ends[1]
    assert bits(root / "on-0", STEP + 4) == bits(root / "on-2", STEP + 4)
