"""Programs built by hpcdist equal those Fluid 1.8.5 builds: operators, slots, roles, variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcdist.graph.program import Program
from tests.golden.loader import golden, op_form, var_form
from tests.golden.nets import CASES, Case

CONFIGS = golden("programs.json")["configs"]
ORIGINS = {name: found["origin"] for name, found in CONFIGS.items()}
SAME = {name: next(k for k in ORIGINS if ORIGINS[k] == ORIGINS[name]) for name in ORIGINS}

# Fluid's reshape2 keeps a 0 in front of the shape it remembers.
OTHER_SHAPES = {"reshape2_0.tmp_1"}


def single(value: Any) -> Any:
    """Return an attribute in Fluid's form: floats are single, printed with eight digits."""
    if isinstance(value, float):
        return float(f"{np.float32(value):.8g}")
    if isinstance(value, (list, tuple)):
        return [single(v) for v in value]
    return value


def ops_form(program: Program, wanted: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Return every block's operators, each with the attributes that its golden twin has."""
    forms = []
    for block, golden_block in zip(program.blocks, wanted["blocks"]):
        ops = []
        for i, op in enumerate(block.ops):
            twin = golden_block["detail"][i] if i < len(golden_block["detail"]) else {"attrs": {}}
            form = op_form(op, set(twin["attrs"]))
            form["attrs"] = {k: single(op.attrs[k]) for k in form["attrs"]}
            ops.append(form)
        forms.append(ops)
    return forms


def normal(op: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": op["type"],
        "inputs": dict(sorted(op["inputs"].items())),
        "outputs": dict(sorted(op["outputs"].items())),
        "attrs": dict(sorted(op["attrs"].items())),
    }


def assert_same_ops(program: Program, wanted: dict[str, Any]) -> None:
    assert len(program.blocks) == len(wanted["blocks"])
    for got, want in zip(ops_form(program, wanted), wanted["blocks"]):
        assert [op["type"] for op in got] == [op["type"] for op in want["detail"]]
        for got_op, want_op in zip(got, want["detail"]):
            assert got_op == normal(want_op)


def test_every_configuration_has_a_net() -> None:
    assert set(SAME.values()) == set(CASES)


# Fluid gives a distributed table an sgd of its own, hpcdist the optimizer it was asked for.
OWN_OPTIMIZER = "emb_distributed_adam_sync"


@pytest.fixture(scope="module", params=sorted(set(CASES) - {OWN_OPTIMIZER}))
def case(request: pytest.FixtureRequest) -> tuple[str, Case]:
    return request.param, CASES[request.param]


def test_main_program(case: tuple[str, Case]) -> None:
    name, built = case
    main, _, _ = built.build(CONFIGS[name]["setting"]["random_seed"])
    assert_same_ops(main, ORIGINS[name]["main"])


def test_startup_program(case: tuple[str, Case]) -> None:
    name, built = case
    _, startup, _ = built.build(CONFIGS[name]["setting"]["random_seed"])
    assert_same_ops(startup, ORIGINS[name]["startup"])


def test_variables(case: tuple[str, Case]) -> None:
    name, built = case
    main, _, _ = built.build(CONFIGS[name]["setting"]["random_seed"])
    got = {v.name: var_form(v) for v in main.global_block().vars.values()}
    want = {v["name"]: v for v in ORIGINS[name]["main"]["vars"]}
    assert sorted(got) == sorted(want)
    for key in want.keys() - OTHER_SHAPES:
        assert got[key] == want[key]


def test_beside_a_distributed_tables_optimizer_nothing_differs() -> None:
    golden_main = ORIGINS[OWN_OPTIMIZER]["main"]["blocks"][0]["detail"]
    main, startup, _ = CASES[OWN_OPTIMIZER].build(0)
    moves = [op for op in main.global_block().ops if op.input("Param") == ["table"]]
    assert [op.type for op in moves] == ["adam"]
    others = [op for op in main.global_block().ops if op not in moves]
    wanted = [op for op in golden_main if op["inputs"].get("Param") != ["table"]]
    assert [op_form(op, set()) for op in others] == [normal({**op, "attrs": {}}) for op in wanted]
    fills = [op.output("Out")[0] for op in startup.global_block().ops]
    golden_fills = ORIGINS[OWN_OPTIMIZER]["startup"]["blocks"][0]["detail"]
    own = ["moment1_0", "moment2_0", "beta1_pow_acc_0", "beta2_pow_acc_0"]
    assert sorted(fills) == sorted(
        [op["outputs"]["Out"][0] for op in golden_fills] + [f"table_{name}" for name in own]
    )
