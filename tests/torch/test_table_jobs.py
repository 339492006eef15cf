"""Jobs of torch's with tables, as users start them: on servers, among trainers, alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.scripts import read_script
from tests.support.jobs import ROOT, Job, needs_mpirun, needs_torch

pytestmark = [needs_mpirun, needs_torch]
ONE_THREAD = {"OMP_NUM_THREADS": "1"}

# A hybrid: two tables, and a dense layer that DistributedDataParallel sums. Prints bits.
TRAINS = read_script("torch_hybrid")


def end_of(tmp_path, *, trainers, servers, steps=(0, 4), mode="sync", directory="-", launcher=()):
    """Return (bits, loss) that a job prints."""
    options = (*launcher, *(("--pservers", str(servers)) if servers else ()))
    args = (*map(str, steps), mode, directory)
    ranks = trainers + servers
    job = Job(tmp_path, TRAINS, *options, ranks=ranks, args=args, mpirun=ranks > 1, env=ONE_THREAD)
    ended = job.end()
    assert ended.code == 0, ended
    ((bits, loss),) = re.findall(r"bits (\w+) loss ([\d.]+)", ended.out)
    return bits, float(loss)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two trainers end with that share the rows out."""
    return end_of(tmp_path_factory.mktemp("two"), trainers=2, servers=0)


def test_rows_on_a_server_and_on_trainers_have_the_same_bits(tmp_path, two):
    found = end_of(tmp_path, trainers=2, servers=1, launcher=("--as-torchrun",))
    assert found == two


def test_evaluation_and_steps_without_look_ups_may_come_before_other_trainers(tmp_path):
    printed = set()
    for servers in (0, 1):
        options = ("--as-torchrun", *(("--pservers", "1") if servers else ()))
        parts = ("torch_evaluates", "loads_no_programs", "loads_few_modules")
        script = "".join(map(read_script, parts))
        ended = Job(tmp_path, script, *options, ranks=2 + servers, env=ONE_THREAD).end()
        assert ended.code == 0, ended
        printed.add(ended.out)
    assert len(printed) == 1, printed


def test_one_asynchronous_trainer_trains_as_a_process_alone(tmp_path, two):
    expected = end_of(tmp_path, trainers=1, servers=0)
    assert end_of(tmp_path, trainers=1, servers=2, mode="async") == expected
    assert expected[1] == pytest.approx(two[1], rel=1e-4)


def test_a_checkpoint_goes_on_on_any_servers_and_without(tmp_path, two):
    place = {"trainers": 2, "directory": str(tmp_path / "saved")}
    end_of(tmp_path, servers=1, steps=(0, 2), **place)
    end_of(tmp_path, servers=0, steps=(2, 3), **place)
    assert end_of(tmp_path, servers=2, steps=(3, 4), **place) == two


def test_servers_without_tables_end_with_the_script(tmp_path):
    script = "import torch.distributed as dist\ndist.init_process_group('gloo')\nprint('done')\n"
    options = ("--as-torchrun", "--pservers", "1")
    ended = Job(tmp_path, script, *options, ranks=3, env=ONE_THREAD).end()
    assert ended.code == 0, ended
    assert ended.out == "done\n" * 2  # what both trainers print


def test_asynchronous_tables_need_servers(tmp_path):
    options = ("0", "1", "async", "-")
    ended = Job(tmp_path, TRAINS, ranks=1, args=options, mpirun=False, env=ONE_THREAD).end()
    assert ended.code == 1
    assert "mode 'async' needs parameter servers" in ended.err


def expected_lines():
    """By hand: an id is counted once in a step; each of its places moves its row by 1/8.

    What was last looked up before the first shrink is forgotten in the third.
    """
    counts, rows = dict.fromkeys([*range(4), 10, *range(20, 24)], 0), {}
    for step in range(4):
        ids = [step, 10, 10, 20 + step, 10, step // 2, 20 + step, 21]
        for one in set(ids):
            counts[one] += 1
        for one in ids:
            rows[one] = rows.get(one, 0) - (counts[one] > 1) / 8
    published = [rows[10] - 1.0 if one == 10 else 0.0 for one in counts]
    return {
        "rows " + " ".join(f"{one}:{rows[one]:g}" for one in counts),
        f"forgotten 0 0 {sum(count > 1 for count in counts.values()) - 1}",
        "published " + " ".join(map(str, published)),
    }


@pytest.mark.parametrize(("trainers", "servers"), [(1, 0), (2, 0), (2, 1), (1, 2)])
def test_rows_come_and_go_and_are_published_alike_on_any_ranks(tmp_path, trainers, servers):
    options = ("--as-torchrun", *(("--pservers", str(servers)) if servers else ()))
    ranks = trainers + servers
    script = read_script("torch_row_policy") + read_script("loads_no_programs")
    facts = {"ranks": ranks, "mpirun": ranks > 1, "env": ONE_THREAD}
    ended = Job(tmp_path, script, *options, args=(str(tmp_path / "published"),), **facts).end()
    assert ended.code == 0, ended
    assert set(ended.out.splitlines()) == expected_lines()


def test_the_example_of_clicks_learns_and_goes_on(tmp_path):
    script = (Path(ROOT) / "examples" / "torch" / "dlrm.py").read_text()
    losses = []
    for steps, options in ((100, ("--as-torchrun", "--pservers", "1")), (150, ())):
        args = ("--steps", str(steps), "--batch", "128", "--save", str(tmp_path / "saved"))
        ended = Job(tmp_path, script, *options, ranks=2, args=args, env=ONE_THREAD).end()
        assert ended.code == 0, ended
        losses += [float(loss) for loss in re.findall(r"loss ([\d.]+)", ended.out)]
    assert len(losses) == 3
    assert losses[0] > losses[2]
