"""What a rank makes of a Program that it meets: what is decided before anything is connected."""

from __future__ import annotations

from typing import Any

import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.comm.cluster import Cluster
from hpcdist.errors import HpcdistError, PlanError
from hpcdist.graph.program import Program
from hpcdist.runtime.job.substitution import JobFacts, LinkKind, Substitution, substitution_of

WITH_SERVERS = Cluster((0, 1), (2,))
TRAINERS = Cluster((0, 1))


def facts(cluster: Cluster, rank: int = 0, **known: bool) -> JobFacts:
    defaults = {"sums_dense": False, "by_script": False, "has_trained": False, "minimizes": False}
    return JobFacts(cluster, cluster.role_of(rank), rank, **(defaults | known))


def built(losses: int = 1, table: bool = False, cut: bool = False) -> tuple[list[Program], Program]:
    """Return Programs that train, each a layer of its own, and their startup Program."""
    mains, startup = [Program() for _ in range(losses)], Program()
    with fluid.unique_name.guard():
        for main in mains:
            with fluid.program_guard(main, startup):
                _minimize(table and main is mains[-1], cut)
    return mains, startup


def _minimize(table: bool, cut: bool) -> None:
    hidden = layers.fc(fluid.data("x", [None, 3]), 2)
    if table:
        ids = fluid.data("ids", [None, 1], "int64")
        row = layers.embedding(ids, [100, 2], is_sparse=True, is_distributed=True)
        hidden = layers.elementwise_add(hidden, layers.reshape(row, [-1, 2]))
    loss = layers.mean(layers.fc(hidden, 1))
    optimizer: Any = fluid.optimizer.SGD(0.1)
    if cut:
        optimizer = fluid.optimizer.PipelineOptimizer(optimizer, [[hidden], [loss]])
    optimizer.minimize(loss)


def transpiled(main: Program, startup: Program, trainer: int) -> Program:
    config = fluid.DistributeTranspilerConfig()
    config.mode = "nccl2"
    names = ",".join(TRAINERS.trainer_endpoints)
    endpoint = TRAINERS.trainer_endpoints[trainer]
    fluid.DistributeTranspiler(config).transpile(
        trainer, main, trainers=names, startup_program=startup, current_endpoint=endpoint
    )
    return main


@pytest.mark.parametrize("which", ["main", "startup"])
def test_a_plain_script_is_transpiled_from_either_program(which):
    (main,), startup = built()
    program = main if which == "main" else startup
    found = substitution_of(program, facts(TRAINERS))
    assert found == Substitution(program, mains=(main,), startup=startup)


def test_servers_learn_of_all_programs_that_train_in_turns():
    mains, _ = built(losses=2)
    assert substitution_of(mains[1], facts(WITH_SERVERS)).mains == tuple(mains)
    assert substitution_of(mains[1], facts(TRAINERS)).mains == (mains[1],)


def test_where_servers_keep_tables_only_the_startup_is_of_the_program_that_has_some():
    mains, startup = built(losses=2, table=True)
    found = substitution_of(startup, facts(WITH_SERVERS, sums_dense=True))
    assert (found.link, found.mains) == (LinkKind.SUMS_DENSE, (mains[1],))


def test_what_trains_nothing_runs_as_it_stands():
    main = Program()
    assert substitution_of(main, facts(WITH_SERVERS)) == Substitution(main)


def test_programs_of_a_script_that_transpiles_are_not_transpiled_again():
    (main,), startup = built()
    assert not substitution_of(startup, facts(TRAINERS)).by_script
    found = substitution_of(startup, facts(TRAINERS, by_script=True))
    assert found == Substitution(startup, by_script=True)
    found = substitution_of(transpiled(main, startup, 1), facts(TRAINERS, 1))
    assert found.program.distribution.fluid_fields() and found.startup is None
    assert found.by_script and found.link is LinkKind.OF_ROLE


def test_a_group_of_other_trainers_is_refused():
    (main,), startup = built()
    program = transpiled(main, startup, 1)
    with pytest.raises(HpcdistError, match="rank 0 is trainer 0 of 2, but .* trainer 1 of 2"):
        substitution_of(program, facts(TRAINERS))
    with pytest.raises(HpcdistError, match="rank 1 is trainer 1 of a job with parameter servers"):
        substitution_of(program, facts(WITH_SERVERS, 1))


def test_a_pipeline_is_the_only_program_of_a_job_without_servers():
    (main,), startup = built(cut=True)
    found = substitution_of(startup, facts(TRAINERS))
    assert found == Substitution(startup, LinkKind.PIPELINE, mains=(main,), startup=startup)
    assert substitution_of(main, facts(Cluster((0,)))).link is LinkKind.OF_ROLE
    with pytest.raises(PlanError, match="a pipeline has no parameter servers"):
        substitution_of(main, facts(WITH_SERVERS, 2))
    with pytest.raises(PlanError, match="trains a Program in a pipeline trains no other one"):
        substitution_of(main, facts(TRAINERS, has_trained=True))
    with pytest.raises(PlanError, match="cuts this program into stages, and the script transpiles"):
        substitution_of(transpiled(main, startup, 0), facts(TRAINERS))


def by_hand(how: str) -> Program:
    """Return a Program whose parameter something else than `minimize` moves."""
    main = Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, Program()):
        loss = layers.mean(layers.fc(fluid.data("x", [None, 3]), 1, param_attr="w"))
        pairs = fluid.backward.append_backward(loss)
        if how == "gradients only":
            return main
        if how == "parsed":
            fluid.optimizer.SGD(0.1).apply_gradients(pairs)
            return Program.parse_from_string(main.desc.serialize_to_string())
        for parameter, gradient in pairs:
            layers.assign(parameter - 0.1 * gradient, parameter)
        if how == "averaged":
            fluid.optimizer.ExponentialMovingAverage(0.5).update()
    return main


@pytest.mark.parametrize("how", ["assigned", "averaged", "parsed"])
def test_parameters_that_no_optimizer_moves_are_refused_on_several_trainers(how):
    main = by_hand(how)
    for cluster in (TRAINERS, WITH_SERVERS):
        with pytest.raises(PlanError, match="changes .*w.* no optimizer has minimized it"):
            substitution_of(main, facts(cluster, minimizes=True))
    assert substitution_of(main, facts(Cluster((0,)))).program is main
    assert substitution_of(main, facts(TRAINERS, by_script=True)).program is main
    main = by_hand("gradients only")
    assert substitution_of(main, facts(TRAINERS)).program is main


def test_what_a_script_without_minimize_keeps_is_refused_with_servers():
    main, startup = Program(), Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        total = layers.create_global_var([3], 0.0, "float32", persistable=True, name="total")
        layers.assign(total + layers.reduce_sum(fluid.data("x", [None, 3]), dim=0), total)
    for rank in (0, 2):
        assert substitution_of(startup, facts(WITH_SERVERS, rank)).program is startup
        with pytest.raises(PlanError, match="changes total in every step, .* without --pservers"):
            substitution_of(main, facts(WITH_SERVERS, rank))
        assert substitution_of(main, facts(WITH_SERVERS, rank, minimizes=True)).program is main
    assert substitution_of(main, facts(TRAINERS)).program is main
