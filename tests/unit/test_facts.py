"""What facts state is what the transpiler reads off the Programs that servers build of them."""

from __future__ import annotations

from dataclasses import fields
from inspect import Parameter, signature

import numpy as np
import pytest

from hpcdist.base.optimizers import OPTIMIZERS
from hpcdist.comm.cluster import Cluster
from hpcdist.errors import PlanError
from hpcdist.fluid import optimizer
from hpcdist.fluid.declared.programs import programs_of, transpiled_for
from hpcdist.ps.facts import DenseFacts, Facts, Initial, OptimizerFacts, TableFacts, TrainingMode
from hpcdist.ps.optimizers import ROW_KINDS
from hpcdist.ps.plan import Plan
from hpcdist.ps.planned_tables import make_table
from hpcdist.ps.row_policy import RowPolicy
from hpcdist.ps.table import SparseTable
from hpcdist.transpiler.plan import constants_of, trainer_plan
from hpcdist.transpiler.table_metadata import read_tables, with_startup

CLUSTER = Cluster((0, 1, 2), (3, 4))
OF_PROGRAMS = (
    *("learning_rate", "parameter_list", "regularization", "grad_clip", "name"),
    "exclude_from_weight_decay_fn",
)
INITIALS = (
    Initial("constant", 2),
    Initial("uniform", -1, 1, 3),
    Initial("normal", 0, 1, 5),
    Initial("truncated_normal", 0.5, 2.0),
)
ROWS = {
    "SGD": {},
    "Momentum": {"momentum": 1, "use_nesterov": 1},
    "Adagrad": {"initial_accumulator_value": 0.1},
    "Adam": {"lazy_mode": True, "beta1": 0.5},
    "Adamax": {"beta2": 0.5},
    "RMSProp": {"rho": 0.5, "momentum": 1, "centered": 1},
    "Ftrl": {"l1": 1},
    "AdamW": {"weight_decay": 1, "epsilon": 1e-3},
    "Lamb": {"lamb_weight_decay": 0},
}
MODES = (
    TrainingMode(),
    TrainingMode("async", 3),
    TrainingMode("dc_asgd"),
    TrainingMode("geo", push_every=4),
)


def tables(optimizers: int) -> tuple[TableFacts, ...]:
    policy = RowPolicy(admit_after=2)
    return tuple(
        TableFacts(f"t{k}", 3 + k, -1 if k % 2 else 50, k or None, initial, k % optimizers, kept)
        for k, (initial, kept) in enumerate(zip(INITIALS, (None, policy, None, None)))
    )


def first_rows(table: SparseTable) -> bytes:
    ids = np.array([4, 7, 49])
    rows = np.empty((len(ids), table.dim), np.float32)
    table.pull(ids, rows)
    return rows.tobytes()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_the_plan_of_facts_is_that_of_their_program(mode):
    shapes = ((300, 200), (7,), (8192, 3), (5, 5))
    dense = tuple(DenseFacts(f"w{k}", shape, k % 2) for k, shape in enumerate(shapes))
    kinds = OptimizerFacts("Adagrad", {}, 0.1), OptimizerFacts("SGD")
    with_tables = () if mode.name in ("dc_asgd", "geo") else tables(2)  # which have none
    facts = Facts(with_tables, dense, kinds, (0.5, 0.1), mode)
    stated = facts.plan(CLUSTER, 1)
    read = trainer_plan(transpiled_for(facts, CLUSTER, 1).get_trainer_program())
    assert read is not None
    for field in fields(Plan):
        if field.name not in ("tables", "fingerprint"):
            assert getattr(stated, field.name) == getattr(read, field.name), field.name
    assert any(route.cut for route in stated.routes)
    assert stated.specs == read.specs
    assert [t.learning_rate for t in stated.tables] == [t.learning_rate for t in read.tables]


@pytest.mark.parametrize("decay", [0.0, 0.25])
@pytest.mark.parametrize("kind", ROW_KINDS)
def test_a_table_of_facts_is_that_of_their_startup_program(kind, decay):
    facts = Facts(tables(1), (), (OptimizerFacts(kind, ROWS[kind], decay),), (0.5,))
    main, startup = programs_of(facts)
    read = with_startup(read_tables(main), startup)
    assert len(read) == len(facts.planned_tables) == len(INITIALS)
    for one, other in zip(facts.planned_tables, read):
        assert one.spec == other.spec
        assert one.policy == other.policy
        a, b = make_table(one, 1, 2), make_table(other, 1, 2)
        assert type(a) is type(b)
        assert repr(a.optimizer) == repr(b.optimizer)  # 1 is not 1.0 where it is saved
        assert first_rows(a) == first_rows(b)


@pytest.mark.parametrize("kind", ROW_KINDS)
def test_the_numbers_of_facts_are_those_that_their_startup_program_fills_in(kind):
    facts = Facts(tables(1), (), (OptimizerFacts(kind, ROWS[kind]),), (0.5,))
    main, startup = programs_of(facts)
    variables = main.global_block().vars
    numbers = {name: v for name, v in constants_of(startup) if variables[name].shape == (1,)}
    assert list(facts.numbers.items()) == list(numbers.items())


OF_FLUID = [kind for kind in OPTIMIZERS.values() if kind.of_fluid]


@pytest.mark.parametrize("kind", OF_FLUID, ids=lambda kind: kind.type)
def test_an_optimizer_takes_the_arguments_of_its_class(kind):
    made = getattr(optimizer, kind.name)
    assert made.type == kind.type
    taken = {
        name: parameter.default
        for name, parameter in signature(made).parameters.items()
        if name not in OF_PROGRAMS
    }
    declared = {
        name: Parameter.empty if argument.required else argument.default
        for name, argument in kind.arguments.items()
    }
    assert [(n, type(v), v) for n, v in declared.items()] == [
        (n, type(v), v) for n, v in taken.items()
    ]


def test_an_argument_that_must_be_given_is_named():
    with pytest.raises(PlanError, match="optimizer Momentum: missing .* 'momentum'"):
        OptimizerFacts("Momentum").check()


def test_facts_that_differ_have_another_fingerprint():
    one, other = (
        Facts((), (DenseFacts("w", (3,), 0),), (OptimizerFacts("SGD", {}, decay),), (0.5,))
        for decay in (0.0, 0.1)
    )
    assert one.fingerprint == Facts.parse(one.payload()).fingerprint != other.fingerprint
