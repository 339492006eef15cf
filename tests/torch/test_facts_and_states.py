"""What travels between the ranks of a torch job, and into checkpoints: facts and states."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import torch

from hpcdist.errors import CheckpointError, PlanError, TableError
from hpcdist.ps.facts import (
    DenseFacts,
    Facts,
    Initial,
    OptimizerFacts,
    TableFacts,
    TrainingMode,
)
from hpcdist.torch import states


def test_facts_travel():
    facts = Facts(
        (TableFacts("t", 4, -1, None, Initial("uniform", -1.0, 1.0), 0),),
        (DenseFacts("w", (2, 3), 0),),
        (OptimizerFacts("Adagrad", {"epsilon": 1e-10}, 0.1),),
        (0.5,),
        TrainingMode("half_async", 3),
    )
    assert facts.mode.name == "async"
    assert Facts.parse(facts.payload()) == facts


def test_states_travel():
    state = {
        0: {"moment": torch.rand(2, 3).bfloat16(), "step": torch.tensor(4.0)},
        "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "none": None, "empty": torch.empty(0, 2)}],
        "wide": torch.rand(4, 6)[:, ::2],
    }
    found = {}
    said = states.split_state("optimizer", state, found)
    tensors = {}
    described = states.state_from(json.loads(json.dumps(said)), tensors)
    assert tensors.keys() == found.keys()
    arrays = {name: states.as_array(tensor) for name, tensor in found.items()}
    for name, array in arrays.items():
        assert states.array_type(tensors[name]) == (array.shape, array.dtype.name)
    again = states.put_together(described, lambda of: states.as_tensor(arrays[of.name], of))
    torch.testing.assert_close(again, state, rtol=0, atol=0)


def test_a_state_that_cannot_be_kept_is_named():
    with pytest.raises(CheckpointError, match="sampler/seen: a checkpoint keeps.* got a set"):
        states.split_state("sampler", {"seen": {1}}, {})
    with pytest.raises(CheckpointError, match="thing/1: two tensors would have this name"):
        states.split_state("thing", {1: torch.ones(2), "1": torch.ones(2)}, {})
    with pytest.raises(CheckpointError, match="'thing': a Generator has no state_dict"):
        states.check_has_state("thing", torch.Generator())
    with pytest.raises(CheckpointError, match="names of objects: expected text, got 5"):
        states.check_has_state(5, torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (torch.ones(3).to_sparse(), "thing/x: .* got a torch.sparse_coo one"),
        (torch.ones(3, device="meta"), "thing/x: .* got a meta one"),
        (torch.nn.LazyLinear(3).weight, "thing/x: has no values before the model has run once"),
    ],
)
def test_a_tensor_without_values_of_its_own_is_named(tensor, says):
    with pytest.raises(CheckpointError, match=says):
        states.split_state("thing", {"x": tensor}, {})


def test_a_key_that_no_file_can_hold_is_named():
    with pytest.raises(CheckpointError, match="cannot be a name in a file; rename a key"):
        states.split_state("thing", {"\ud800": torch.ones(2)}, {})


def test_values_of_conjugate_and_negated_views_are_saved():
    number = torch.tensor([1 + 2j, 3 - 4j])
    for view in (number.conj(), number.conj().imag):
        tensor = states.SavedTensor("x", tuple(view.shape), view.dtype)
        assert torch.equal(states.as_tensor(states.as_array(view), tensor), view)


def test_numbers_that_are_not_finite_are_seen_in_every_dtype():
    for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.float8_e5m2):
        for wrong in (float("nan"), float("inf")):
            tensor = torch.ones(2, 3).to(dtype)
            assert not states.not_finite(tensor)
            tensor.view(-1)[4] = wrong
            assert states.not_finite(tensor)
    assert not states.not_finite(torch.ones(2, dtype=torch.int64))


def test_an_argument_that_an_optimizer_of_fluids_does_not_take_is_named_with_those_it_takes():
    with pytest.raises(PlanError, match="Adam does not take betas: its arguments are beta1, beta2"):
        OptimizerFacts("Adam", {"betas": 0.9}).check()
    with pytest.raises(PlanError, match="SGD does not take grad_clip: .* none but lr"):
        OptimizerFacts("SGD", {"grad_clip": 1.0}).check()


@pytest.mark.parametrize(
    ("kind", "arguments", "says"),
    [
        ("Adam", {"epsilon": "x"}, "Adam: epsilon: expected a finite number, got 'x'"),
        ("Adam", {"beta1": 2.0}, "beta1: expected [0, 1), got 2.0"),
        ("Adagrad", {"epsilon": float("nan")}, "epsilon: expected a finite number, got nan"),
        ("Momentum", {"momentum": -1}, "momentum: expected at least 0, got -1"),
    ],
)
def test_an_argument_that_cannot_be_is_refused(kind, arguments, says):
    with pytest.raises(PlanError, match=re.escape(says)):
        OptimizerFacts(kind, arguments).check()


def test_arguments_that_can_be():
    for kind, arguments in [("Ftrl", {"lr_power": -0.4}), ("Adam", {"lazy_mode": True})]:
        OptimizerFacts(kind, arguments, 1e-3).check()


def test_first_values_that_cannot_be_are_refused():
    with pytest.raises(TableError, match="expected the lower bound first, got 1 and -1"):
        Initial("uniform", 1, -1)
    with pytest.raises(TableError, match="a deviation that is not negative, got -1"):
        Initial("normal", 0, -1)
    assert str(OptimizerFacts("Adam", {"beta1": 0.8}, 0.1)) == "Adam(beta1=0.8, l2_decay=0.1)"
