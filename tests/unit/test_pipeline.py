"""Where stages are cut, what they compute, keep and send, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import GraphError, PlanError
from hpcdist.transpiler.pipeline_cut import Phase
from hpcdist.transpiler.pipeline_plan import make_pipeline_plan
from hpcdist.transpiler.pipeline_program import Stage, schedule, stage_program, stage_startup


def built(cut: Any = None, optimizer: Any = None, change: Any = None) -> Any:
    """Return main and startup of a network of three layers; ``cut`` names outputs of layers."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = fluid.data("x", [None, 6]), fluid.data("y", [None, 1])
        first = layers.fc(x, 5, act="tanh")
        second = layers.fc(first, 4, act="relu")
        if change is not None:
            second = change(second)
        joined = layers.concat([second, first], axis=1)
        loss = layers.mean(layers.square_error_cost(layers.fc(joined, 1), y))
        cuts = [*([{"first": first, "second": second}[name]] for name in cut or ["first"]), [loss]]
        made = optimizer() if optimizer is not None else fluid.optimizer.Adam(0.1)
        fluid.optimizer.PipelineOptimizer(made, cuts).minimize(loss)
    return main, startup


def clipped() -> Any:
    clip = fluid.clip.GradientClipByGlobalNorm(0.3)
    return fluid.optimizer.Momentum(layers.exponential_decay(0.1, 2, 0.5), 0.9, grad_clip=clip)


def plan_of(main: Any, several_parts: bool = True) -> Any:
    return make_pipeline_plan(main, main.pipeline, several_parts)


def stage_of(plan: Any, stage: int, replicas: int = 1) -> Stage:
    names = tuple(f"r{k}:1" for k in range(replicas))
    facts: dict[str, Any] = {"owners": plan.keeper, "stage": stage, "stages": plan.stages}
    return Stage("grad_allreduce", names, 0, names[0], **facts)


def program_of(main: Any, plan: Any, stage: int, micro_batches: int, replicas: int = 1) -> Any:
    declared = {name: var.meta for name, var in main.global_block().vars.items()}
    return stage_program(main, plan, stage_of(plan, stage, replicas), [declared] * micro_batches)


def test_stages_keep_their_parameters_and_send_what_later_ones_read():
    main, startup = built(["first", "second"])
    plan = plan_of(main)
    assert plan.stages == 3
    kept = {name: stage for name, stage in plan.keeper.items() if "moment" not in name}
    assert {n: s for n, s in kept.items() if ".w_0" in n and "beta" not in n} == {
        "fc_0.w_0": 0, "fc_1.w_0": 1, "fc_2.w_0": 2
    }  # fmt: skip
    assert plan.keeper["fc_1.w_0_moment1_0"] == 1 and "learning_rate_0" not in plan.keeper
    sent = {(t.name, t.source, t.target) for t in plan.transfers}
    first, second = "fc_0.tmp_2", "fc_1.tmp_2"
    assert {(first, 0, 1), (first, 0, 2), (second, 1, 2)} <= sent
    assert all("@GRAD" in name and source > to for name, source, to in sent if source > to)
    ops = stage_startup(startup, plan, stage_of(plan, 1)).global_block().ops
    written = {name for op in ops for name in op.output_arg_names}
    assert written & set(kept) == {n for n, stage in kept.items() if stage == 1}


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("micro_batches", [1, 2, 8])
def test_no_more_micro_batches_are_alive_than_stages_are_left(stages, micro_batches):
    for stage in range(stages):
        order = schedule(stage, stages, micro_batches)
        alive, most = 0, 0
        for phase, _ in order:
            alive += 1 if phase is Phase.FORWARD else -1
            most = max(most, alive)
        assert most == min(stages - stage, micro_batches) and alive == 0
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            assert [m for of, m in order if of is phase] == list(range(micro_batches))


def test_the_program_of_a_stage_shows_what_it_does():
    main, _ = built(["first"], clipped)
    plan = plan_of(main)
    text = [str(op) for op in program_of(main, plan, 0, 2, replicas=2).global_block().ops]
    sends = [line for line in text if line.startswith("pipeline_send")]
    assert sends == [
        "pipeline_send(X=fc_0.tmp_2@MICRO@0)",
        "pipeline_send(X=fc_0.tmp_2@MICRO@1)",
        *(f"pipeline_send(X={name})" for name in norms_of(plan, 0)),
    ]
    added = [line for line in text if line.startswith("sum(X=[fc_0.w_0@GRAD")]
    assert added == ["sum(X=[fc_0.w_0@GRAD@MICRO@0, fc_0.w_0@GRAD@MICRO@1]) -> Out=fc_0.w_0@GRAD"]
    assert "c_allreduce_sum(X=fc_0.w_0@GRAD) -> Out=fc_0.w_0@GRAD" in text
    assert not any("fc_1.w_0" in line for line in text)


def norms_of(plan: Any, stage: int) -> list[str]:
    return [t.name for t in plan.transfers if t.once and t.source == stage]


def test_a_common_norm_is_computed_by_all_stages_from_what_each_tells():
    main, _ = built(["first"], clipped)
    plan = plan_of(main)
    assert len(norms_of(plan, 0)) == 2 and len(norms_of(plan, 1)) == 4  # weights and biases
    (norm,) = (op for op in main.global_block().ops if op.type == "sqrt")
    assert plan.ops[norm.idx] == (Phase.UPDATE, -1)


def by_branch(x: Any) -> Any:
    condition = layers.less_than(layers.reduce_mean(x), layers.fill_constant([1], "float32", 0.5))
    return layers.cond(condition, lambda: layers.scale(x, 2.0), lambda: x)


def by_python(x: Any) -> Any:
    out = x.block.create_var("out", dtype="float32", shape=[-1, 4])
    layers.py_func(lambda value: value, x, out, backward_func=lambda value, back, d: d)
    return out


REFUSED = {
    "python": (by_python, None, ["first"], "gives a shape that only the step knows"),
    "batch_norm": (layers.batch_norm, None, ["first"], "batch_norm changes 'batch_norm_0.w_1'"),
    "branch": (by_branch, None, ["first"], "is a loop or a branch"),
    "empty": (None, None, ["first", "first"], "stage 1 of 3 has no operators"),
    "amp": (
        None,
        lambda: fluid.contrib.mixed_precision.decorate(fluid.optimizer.SGD(0.1)),
        ["first"],
        "cannot be combined with mixed precision",
    ),
    "bfloat16": (
        None,
        lambda: fluid.contrib.mixed_precision.bf16.decorate_bf16(fluid.optimizer.SGD(0.1)),
        ["first"],
        "cannot be combined with mixed precision",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_cut_is_refused_by_name(name):
    change, optimizer, cut, words = REFUSED[name]
    main, _ = built(cut, optimizer, change)
    with pytest.raises(PlanError, match=words):
        plan_of(main)


def test_rows_of_a_sparse_gradient_stay_out_of_pipelines():
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        ids = fluid.data("ids", [None, 1], "int64")
        rows = fluid.layers.embedding(ids, [9, 4], is_sparse=True)
        loss = layers.mean(layers.fc(rows, 1))
        inner = fluid.optimizer.SGD(0.1)
        fluid.optimizer.PipelineOptimizer(inner, [[rows], [loss]]).minimize(loss)
    with pytest.raises(PlanError, match="is_sparse=True"):
        plan_of(main)


def test_a_device_reads_of_earlier_ones_only():
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        with fluid.device_guard("gpu:0"):
            first = layers.fc(fluid.data("x", [None, 3]), 3)
        with fluid.device_guard("gpu:1"):
            second = layers.fc(first, 3)
        with fluid.device_guard("gpu:0"):
            loss = layers.mean(layers.fc(second, 1))
        fluid.optimizer.PipelineOptimizer(fluid.optimizer.SGD(0.1)).minimize(loss)
    with pytest.raises(PlanError, match="is on 'gpu:0', stage 0, but reads what stage 1"):
        plan_of(main)


def test_a_stage_off_the_path_to_the_loss_is_refused():
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = fluid.data("x", [None, 3])
        aside, loss = layers.fc(x, 3), layers.mean(layers.fc(x, 1))
        made = fluid.optimizer.PipelineOptimizer(fluid.optimizer.SGD(0.1), [[aside], [loss]])
        made.minimize(loss)
    with pytest.raises(PlanError, match="stage 0 of 2 computes nothing that later ones read"):
        plan_of(main)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cut_list": []}, "cut_list: expected lists"),
        ({"cut_list": [3, ["b"]]}, "cut_list: expected lists of Variables.*, got 3 in an entry"),
        ({"cut_list": [[["a"]], ["b"]]}, "cut_list: expected lists of Variables.*, got .'a'. in"),
        ({"cut_list": [["a"], ["b"]], "place_list": [1, 2]}, "place_list: expected 3 entries"),
        ({"queue_size": 0}, "queue_size"),
        ({"num_microbatches": 0}, "num_microbatches"),
    ],
)
def test_arguments_are_checked(given, words):
    with pytest.raises(GraphError, match=words):
        fluid.optimizer.PipelineOptimizer(fluid.optimizer.SGD(0.1), **given)


def test_the_last_stage_ends_with_the_loss():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        first = layers.fc(fluid.data("x", [None, 3]), 3)
        loss = layers.mean(first)
        made = fluid.optimizer.PipelineOptimizer(fluid.optimizer.SGD(0.1), [[first], [first]])
        with pytest.raises(GraphError, match="expected .*, the loss"):
            made.minimize(loss)
