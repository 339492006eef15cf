"""What the transpiler makes of the golden programs in the modes without servers."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hpcdist import layers, optimizer
from hpcdist.graph.names import guard
from hpcdist.graph.program import Program, program_guard
from hpcdist.transpiler import DistributeTranspiler, DistributeTranspilerConfig
from hpcdist.transpiler.collective import GradAllReduce, LocalSGD
from tests.golden.blocks import CONFIGS, assert_same_blocks
from tests.golden.loader import golden, programs_from_golden, var_form

NAMES = [name for name in CONFIGS if CONFIGS[name]["setting"]["nps"] == 0]
COLLECTIVE = [name for name in NAMES if name.startswith("collective")]


def endpoints(name: str) -> list[str]:
    return [f"127.0.0.1:{7000 + k}" for k in range(CONFIGS[name]["setting"]["trainers"])]


def transpiled(name: str) -> DistributeTranspiler:
    setting = CONFIGS[name]["setting"]
    transpiler = DistributeTranspiler(DistributeTranspilerConfig(**setting["config"]))
    main, startup = programs_from_golden(CONFIGS[name]["origin"], setting["random_seed"])
    transpiler.transpile(
        setting["trainer_id"],
        program=main,
        trainers=",".join(endpoints(name)),
        startup_program=startup,
        current_endpoint=endpoints(name)[setting["trainer_id"]],
        **setting["transpile_arguments"],
    )
    return transpiler


def expected(name: str, program: str) -> dict[str, Any]:
    """Return the golden program; Fluid gives snapshots no element type, so BOOL spreads."""
    found = copy.deepcopy(CONFIGS[name]["trainer"][program])
    if name == "collective_local_sgd":
        found["vars"] = [
            {**var, "dtype": "FP32"} if "dtype" in var else var for var in found["vars"]
        ]
    return found


def assert_same_variables(program: Any, wanted: dict[str, Any]) -> None:
    got = {v.name: var_form(v) for v in program.global_block().vars.values()}
    assert sorted(got) == sorted(v["name"] for v in wanted["vars"])
    for var in wanted["vars"]:
        found = got[var["name"]]
        assert {key: found[key] for key in var} == var  # RAW variables have no shape


def test_the_golden_file_has_these_configurations():
    assert NAMES == [
        "nccl2_2trainers_t0",
        "nccl2_2trainers_t1_comm2",
        "collective_grad_allreduce_ring1",
        "collective_local_sgd",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_main(name):
    program = transpiled(name).get_trainer_program()
    assert_same_blocks(program, expected(name, "main"))
    assert_same_variables(program, expected(name, "main"))


@pytest.mark.parametrize("name", NAMES)
def test_startup(name):
    program = transpiled(name).get_trainer_startup_program()
    assert_same_blocks(program, expected(name, "startup"))
    assert_same_variables(program, expected(name, "startup"))


@pytest.mark.parametrize("name", NAMES)
def test_fields_of_the_main_program(name):
    program = transpiled(name).get_trainer_program()
    wanted = CONFIGS[name]["trainer"]["program_fields"]
    got = {field: getattr(program, field) for field in wanted}
    assert {k: list(v) if isinstance(v, tuple) else v for k, v in got.items()} == wanted


@pytest.mark.parametrize("name", COLLECTIVE)
def test_fluids_classes_rewrite_in_place(name):
    found = CONFIGS[name]
    main, startup = programs_from_golden(found["origin"])
    kind = LocalSGD if name.endswith("local_sgd") else GradAllReduce
    ours = endpoints(name)
    assert kind(1).transpile(startup, main, 0, ours, ours[0], False) is None
    assert_same_blocks(main, expected(name, "main"))
    assert_same_blocks(startup, expected(name, "startup"))


def test_of_two_gradients_of_one_operator_the_later_is_summed_first():
    # Fluid 1.8.5, two trainers: each sum is inserted before the one that was inserted earlier.
    main, startup = Program(), Program()
    with guard(), program_guard(main, startup):
        normal = layers.batch_norm(layers.data("x", [2, 4, 4]))
        optimizer.SGD(0.1).minimize(layers.mean(normal))
    GradAllReduce(1).transpile(startup, main, 0, ["a:1", "b:1"], "a:1", False)
    ops = main.global_block().ops
    summed = [op.input("X")[0] for op in ops if op.type == "c_allreduce_sum"]
    assert summed == ["batch_norm_0.w_0@GRAD", "batch_norm_0.b_0@GRAD"]


BAD = {case["case"]: case["result"] for case in golden("programs.json")["bad_inputs"]}
REFUSED = {
    "nccl2 trainer_id=-1": ({"mode": "nccl2"}, {"trainer_id": -1}),
    "hierarchical: 6 trainers, inter_nranks 4 (not a divisor)": (
        {
            "mode": "nccl2",
            "use_hierarchical_allreduce": True,
            "hierarchical_allreduce_inter_nranks": 4,
        },
        {"trainers": "a:1,b:1,c:1,d:1,e:1,f:1"},
    ),
    "hierarchical: inter_nranks left 0, no GPU": (
        {"mode": "nccl2", "use_hierarchical_allreduce": True},
        {},
    ),
    'collective, collective_mode "bogus"': (
        {"mode": "collective", "collective_mode": "bogus"},
        {},
    ),
    "collective, integer trainers": (
        {"mode": "collective", "collective_mode": "grad_allreduce"},
        {"trainers": 2},
    ),
    "collective, current endpoint missing": (
        {"mode": "collective", "collective_mode": "grad_allreduce"},
        {"current_endpoint": "z:1"},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_are_of_fluids_types(case, monkeypatch):
    monkeypatch.delenv("HPCDIST_RANK", raising=False)
    kinds = {k.__name__: k for k in (ValueError, AssertionError, AttributeError)}
    config, arguments = REFUSED[case]
    main, startup = programs_from_golden(CONFIGS["nccl2_2trainers_t0"]["origin"])
    before = str(main), str(startup)
    given = {"trainer_id": 0, "trainers": "a:1,b:1", "current_endpoint": "a:1", **arguments}
    with pytest.raises(kinds[BAD[case]["error"]["type"]]):
        DistributeTranspiler(DistributeTranspilerConfig(**config)).transpile(
            program=main, startup_program=startup, **given
        )
    assert (str(main), str(startup)) == before
