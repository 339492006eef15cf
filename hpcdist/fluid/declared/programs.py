"""The Programs of facts: what servers run of tables and parameters that no Program declares.

They are transpiled like any other, so servers, slices, modes and checkpoints are those of Programs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcdist.comm.cluster import Cluster
from hpcdist.fluid import initializer, layers, optimizer
from hpcdist.fluid.declared.table_optimizers import AdamW
from hpcdist.fluid.layers.param_attr import ParamAttr
from hpcdist.fluid.regularizer import L2Decay
from hpcdist.graph import names
from hpcdist.graph.autodiff.backward import append_backward
from hpcdist.graph.program import Program, program_guard
from hpcdist.ps.facts import DenseFacts, Facts, Initial, OptimizerFacts, TableFacts, rate_name
from hpcdist.transpiler import (
    DistributeTranspiler,
    DistributeTranspilerConfig,
    GeoSgdTranspiler,
)


def programs_of(facts: Facts) -> tuple[Program, Program]:
    """Return the Program that trains all of it, and what gives it its first values.

    Nobody runs the first as it stands: it says what is looked up, and what moves it how.
    """
    main, startup = Program(), Program()
    with program_guard(main, startup), names.guard():
        ends = [_looked_up(table) for table in facts.tables]
        ends += [_summed(dense) for dense in facts.dense]
        pairs = append_backward(layers.sums(ends))
        of = {table.name: table.optimizer for table in facts.tables}
        of |= {dense.name: dense.optimizer for dense in facts.dense}
        for number, moved_by in enumerate(facts.optimizers):
            rate = layers.create_global_var(
                [1], facts.rates[number], "float32", persistable=True, name=rate_name(number)
            )
            rule = _optimizer(moved_by, rate)
            rule.apply_gradients([pair for pair in pairs if of[pair[0].name] == number])
    return main, startup


def transpiled_for(facts: Facts, cluster: Cluster, trainer: int) -> DistributeTranspiler:
    """Return the transpiler that has planned who keeps what, for a job with servers."""
    main, startup = programs_of(facts)
    config = DistributeTranspilerConfig()
    config.sync_mode = facts.mode.name == "sync"
    config.enable_dc_asgd = facts.mode.name == "dc_asgd"
    config.max_staleness = facts.mode.max_staleness
    config.geo_sgd_need_push_nums = facts.mode.push_every
    config.dense = "pserver"  # those that the script gives to servers
    make = GeoSgdTranspiler if facts.mode.name == "geo" else DistributeTranspiler
    transpiler = make(config)
    transpiler.transpile(
        trainer,
        program=main,
        pservers=",".join(cluster.endpoints),
        trainers=len(cluster.trainers),
        sync_mode=config.sync_mode,
        startup_program=startup,
    )
    return transpiler


def _optimizer(facts: OptimizerFacts, rate: object) -> optimizer.Optimizer:
    make: Callable[..., Any] = AdamW if facts.kind == "AdamW" else getattr(optimizer, facts.kind)
    decay = {"regularization": L2Decay(facts.l2_decay)} if facts.l2_decay else {}
    rule: optimizer.Optimizer = make(rate, **facts.arguments, **decay)
    return rule


def _initializer(initial: Initial) -> initializer.Initializer:
    if initial.kind == "constant":
        return initializer.Constant(initial.a)
    if initial.kind == "uniform":
        return initializer.Uniform(initial.a, initial.b, initial.seed)
    if initial.kind == "normal":
        return initializer.Normal(initial.a, initial.b, initial.seed)
    return initializer.TruncatedNormal(initial.a, initial.b, initial.seed)


def _looked_up(table: TableFacts) -> Any:
    ids = layers.data(f"{table.name}@IDS", shape=[1], dtype="int64")
    rows = layers.embedding(
        ids,
        size=[table.dict_size, table.width],
        is_sparse=True,
        is_distributed=True,
        padding_idx=table.padding,
        param_attr=ParamAttr(table.name, _initializer(table.initial), row_policy=table.policy),
    )
    return layers.reduce_sum(rows)


def _summed(dense: DenseFacts) -> Any:
    parameter = layers.create_parameter(
        list(dense.shape),
        "float32",
        attr=ParamAttr(name=dense.name),
        default_initializer=initializer.Constant(0.0),
    )
    return layers.reduce_sum(parameter)
