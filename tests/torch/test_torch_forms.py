"""Forms of operators as functions of tensors against the operators' kernels, also when traced."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from hpcdist.backward import gradients  # noqa: E402
from hpcdist.base.optimizers import OPTIMIZERS  # noqa: E402
from hpcdist.graph.names import EMPTY  # noqa: E402
from hpcdist.graph.registry import Meta, arguments, defined, known_attrs, lookup  # noqa: E402
from hpcdist.lod_tensor import LoDTensor  # noqa: E402
from hpcdist.ops.optimize.mixed_precision import ROUNDINGS  # noqa: E402
from hpcdist.ops.random.counter import Draws  # noqa: E402
from hpcdist.ops.torch_forms import EXACT_FAMILIES, FAMILIES, forms  # noqa: E402
from tests.cases.operators.forward import WITHOUT_GRADIENT  # noqa: E402
from tests.support.ops import Case, Draw, Graph, Seeded, every_case, floats_in  # noqa: E402

SEEDS = 9  # at most, until forms held for a case
DRAWN = 2**33 + 7  # how often an operator has drawn before
NEAR = {"float64": 1e-9, "float32": 2e-4}


# -- cases of what has none elsewhere --------------------------------------------------------------
def _moved(type: str) -> Callable[[Draw], Case]:
    """Return the case of an optimizer; its states are not negative."""
    update = OPTIMIZERS[type]

    def make(draw: Draw) -> Case:
        shape = draw.shape(1, 2)
        inputs = {"Param": draw.floats(shape), "Grad": draw.floats(shape)}
        if update.has_rate:
            inputs["LearningRate"] = draw.floats((1,), 0.1, 0.5)
        for slot in update.state:
            inputs[slot] = draw.floats((1,) if slot.endswith("Pow") else shape, 0.5, 0.9)
        more = {
            "momentum": {"use_nesterov": draw.bool()},
            "rmsprop": {"centered": draw.bool(), "momentum": 0.9},
            "ftrl": {"lr_power": draw.of(-0.5, -0.3), "l1": 0.3, "l2": 0.1},
        }
        if type == "rmsprop":  # else there may be no root
            inputs["MeanGrad"] = inputs["MeanGrad"] * 0.1
            inputs["Grad"] = inputs["Grad"] * 0.1
        return Case(inputs, more.get(type, {}))

    return make


def _lars_of_norms(draw: Draw) -> Case:
    case = _moved("lars_momentum")(draw)
    norms = {
        "SquaredParamNorm": draw.floats((1,), 1, 2),
        "SquaredGradNorm": draw.floats((1,), 1, 2),
    }
    return Case({**case.inputs, **norms})


def _scaled(draw: Draw) -> Case:
    xs = [draw.floats(draw.shape()) for _ in range(2)]
    if draw.bool():
        xs[1].flat[0] = draw.of(np.inf, np.nan)
    return Case({"X": xs, "Scale": draw.floats((1,), 1, 4)}, {"zeroes": draw.bool()}, {"Out": 2})


def _loss_scale(draw: Draw) -> Case:
    inputs = {
        "FoundInfinite": np.array([draw.bool()]),
        "PrevLossScaling": draw.floats((1,), 0.5, 4),
        "InGoodSteps": np.array([draw.int(0, 3)], np.int32),
        "InBadSteps": np.array([draw.int(0, 3)], np.int32),
    }
    return Case(inputs, {"incr_every_n_steps": 2, "decr_every_n_nan_or_inf": 2})


def _halves(draw: Draw) -> Case:
    spread = draw.floats((8, 9)) * 10.0 ** draw.rng.integers(-9, 6, (8, 9))
    spread[0, :4] = 0.0, -0.0, np.inf, 65519.9
    return Case({"X": spread.astype("float32")})


def _dropped(draw: Draw) -> Case:
    how = draw.of("downgrade_in_infer", "upscale_in_train")
    attrs = {"dropout_prob": draw.of(0.0, 0.4, 0.4, 1.0), "dropout_implementation": how}
    return Case({"X": draw.floats((3, 5))}, attrs, targets=["Out"])


def _averaged(draw: Draw) -> Case:
    shape = draw.shape(1, 2)
    counts = {"in_num_accumulates": draw.int(0, 3), "in_old_num_accumulates": 2}
    counts["in_num_updates"] = draw.of(7, 16383)
    inputs = {"param": draw.floats(shape)}
    inputs |= {f"in_sum_{k}": draw.floats(shape) for k in (1, 2, 3)}
    inputs |= {name: np.array([count]) for name, count in counts.items()}
    limits = {"average_window": 0.5, "min_average_window": 2, "max_average_window": 3}
    return Case(inputs, limits)


def _one(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape())})


OTHERS: dict[str, Callable[[Draw], Case]] = {
    **{type: _moved(type) for type in OPTIMIZERS},
    "average_accumulates": _averaged,
    "dropout": _dropped,
    "size": lambda draw: Case({"Input": draw.floats(draw.shape())}),
    "eye": lambda draw: Case({}, {"num_rows": 2, "num_columns": 3}),
    "lars_momentum_of_norms": _lars_of_norms,
    "check_finite_and_unscale": _scaled,
    "update_loss_scaling": _loss_scale,
    **dict.fromkeys(ROUNDINGS, _halves),
    "squared_l2_norm": _one,
    "clip_by_norm": lambda draw: Case(_one(draw).inputs, {"max_norm": draw.of(0.5, 50.0)}),
    "fill_constant": lambda draw: Case({}, {"shape": list(draw.shape()), "value": 2.5}),
    "assign_value": lambda draw: Case({}, {"shape": [2], "fp32_values": [1.5, 1.5]}),
}
EVERY = {**every_case(), **WITHOUT_GRADIENT, **OTHERS}


def _of_type(value: Any, dtype: str) -> Any:
    """Return numbers in a float type."""
    if isinstance(value, list):
        return [_of_type(one, dtype) for one in value]
    if isinstance(value, LoDTensor):
        return LoDTensor(_of_type(np.asarray(value), dtype), value.sequences)
    array = np.asarray(value)
    return array.astype(dtype) if array.dtype.kind == "f" else array


# -- one operator after the other, by its kernel and by its form -----------------------------------
def _each(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to a value, or to each of a list; None stays."""
    if isinstance(value, list):
        return [_each(function, one) for one in value]
    return None if value is None else function(value)


def _flat(values: Sequence[Any]) -> list[Any]:
    return [v for held in values for v in (held if isinstance(held, list) else [held])]


class Values:
    """What the variables of a Program hold when its operators are run one by one."""

    def __init__(self, feed: dict[str, Any]) -> None:
        self.arrays = {name: np.asarray(value) for name, value in feed.items()}
        self.compared: set[str] = set()

    def run(self, op: Any) -> None:
        """Run an operator's kernel; if it has a form that holds, compare what that gives."""
        if not self.arrays.keys() >= set(op.input_arg_names):
            return  # made from sparse gradients
        definition = lookup(op.type)
        attrs = known_attrs(definition, op.attrs, {})
        held = {slot: [self.arrays[name] for name in op.input(slot)] for slot in op.inputs}
        inputs = arguments(definition.operands, held)
        metas = [_each(lambda array: Meta(array.shape, array.dtype.name), v) for v in inputs]
        inferred = definition.infer(*metas, **attrs)
        outs = inferred if isinstance(inferred, tuple) else (inferred,)
        names = [op.outputs.get(slot.name, ()) for slot in definition.outputs]
        wanted = [any(name and name != EMPTY for name in of_slot) for of_slot in names]
        outs = [out if want else None for out, want in zip(outs, wanted)]
        form = forms().get(op.type)
        holds = form is not None and form.holds(metas, attrs)
        if any(isinstance(out, Meta) and out.type != "LOD_TENSOR" for out in outs):
            assert not holds, f"{op.type} gives sparse rows, for which there is no form"
            return
        results = [_each(lambda meta: np.zeros(meta.shape, meta.dtype), out) for out in outs]
        own = [_each(np.copy, value) for value in inputs]
        if op.type == "adadelta":  # its form is of steps in place, which read what they write
            results[-1] = own[-1]
        more = {"state": Draws("own", DRAWN)} if definition.state else {}
        more |= {"lods": [None]} if definition.lods else {}
        if definition.bind is not None:
            definition.bind(np, *own, *results, **attrs, **more)()
        else:
            definition.kernel(np, *own, *results, **attrs)
        for of_slot, result in zip(names, results):
            self.arrays.update(zip(of_slot, result if isinstance(result, list) else [result]))
        if holds:
            self.compared.add(op.type)
            _compare(form, inputs, attrs, outs, wanted, results)


def _compare(form: Any, inputs: Any, attrs: Any, outs: Any, wanted: Any, results: Any) -> None:
    tensors = [_each(lambda array: torch.from_numpy(np.array(array)), v) for v in inputs]
    before = [_each(torch.clone, v) for v in tensors]
    choices = [wanted]
    is_double = any(a is not None and a.dtype == np.float64 for a in _flat(results))
    if form.wanted and sum(wanted) > 1 and is_double:  # once is enough
        choices += [[want and i == k for i, want in enumerate(wanted)] for k in range(len(wanted))]
    for chosen in choices:

        def run(*values: Any, chosen: Any = chosen) -> Any:
            return list(form(torch, values, attrs, outs, chosen, torch.tensor(DRAWN)))

        ways = [run, make_fx(run)(*tensors)] if chosen is wanted else [run]
        for way in ways:
            for want, found, result in zip(chosen, way(*tensors), results, strict=True):
                _agree(form.type, attrs, found, result) if want else None
    assert all(map(torch.equal, _known(before), _known(tensors))), f"{form.type} writes into inputs"


def _known(values: Sequence[Any]) -> list[Any]:
    return [torch.nan_to_num(v) for v in _flat(values) if v is not None]


def _agree(type: str, attrs: Any, found: Any, result: Any) -> None:
    for one, array in zip(_flat([found]), _flat([result]), strict=True):
        if array is None or not array.size:
            continue
        assert isinstance(one, torch.Tensor), f"{type} gives {one} for what is wanted"
        got = one.numpy()
        assert (got.dtype, got.shape) == (array.dtype, array.shape), type
        near = NEAR.get(array.dtype.name, 0)
        largest = float(np.abs(array[np.isfinite(array)]).max(initial=1)) if near else 0
        np.testing.assert_allclose(got, array, near, near * largest, err_msg=f"{type} {attrs}")


def _run(type: str, case: Case) -> set[str]:
    """Run an operator and its gradients; return those whose forms were compared."""
    graph = Graph(type, case)
    values = Values(graph.feed)
    forward = list(graph.block.ops)
    for op in forward:
        values.run(op)
    if lookup(type).grad is None:
        return values.compared
    floats = floats_in(graph.outputs, case.targets)
    targets = [v for v in floats if values.arrays.get(v.name, np.empty(0)).size]
    moved = floats_in(graph.inputs, case.wrt)
    rng = np.random.default_rng(1)
    weights = []
    for target in targets:
        array = values.arrays[target.name]
        slopes = rng.uniform(0.5, 1.5, array.shape).astype(array.dtype)
        weights.append(graph.add_feed(f"weight_of_{target.name}", slopes))
        values.arrays[weights[-1].name] = slopes
    gradients(targets, moved, weights)
    for op in graph.block.ops[len(forward) :]:
        values.run(op)
    return values.compared


@functools.cache
def compared(type: str) -> frozenset[str]:
    """Compare an operator and its gradients on random cases; return those with forms."""
    seen: set[str] = set()
    for seed in range(SEEDS):
        if seed < 2 or not {type, f"{type}_grad"} & set(forms()) <= seen:
            double = seed % 2 == 0 and type not in ROUNDINGS
            seen |= _run(type, _of_cases(type, seed, "float64" if double else "float32"))
    return frozenset(seen)


def _of_cases(type: str, seed: int, dtype: str) -> Case:
    case = EVERY[type](Seeded(seed))
    inputs = {slot: _of_type(value, dtype) for slot, value in case.inputs.items()}
    return Case(inputs, case.attrs, case.outputs, case.wrt, case.targets)


TYPES = [type for type in sorted(EVERY) if {type, f"{type}_grad"} & set(forms())]


@pytest.mark.parametrize("type", TYPES)
def test_a_form_gives_what_the_kernel_gives(type: str) -> None:
    assert compared(type), f"no case of {type} was one for which its form holds"


def test_every_form_is_of_an_operator_and_was_compared() -> None:
    families = {
        family: [t for t, f in forms().items() if f.family == family]
        for family in (*FAMILIES, *EXACT_FAMILIES)
    }
    assert all(families.values())
    assert sorted(set(forms()) - set(defined())) == []
    seen = frozenset().union(*map(compared, TYPES))
    assert sorted(set(forms()) - seen) == []


def test_integers_outside_their_range_are_found_on_the_device() -> None:
    form = forms()["lookup_table_v2"]
    w = torch.arange(8.0).reshape(4, 2)
    attrs = dict(lookup("lookup_table_v2").attrs)
    for ids, worst in (([0, 3], 3), ([1, 4], 4), ([-1, 2], -1), ([7, -2], -2)):
        tensor = torch.tensor(ids)
        (check,) = form.checked([w, tensor], attrs)
        assert (check.count, int(check.worst(torch))) == (4, worst)
        (out,) = form(torch, [w, tensor], attrs, [Meta((2, 2), "float32")])
        assert all(row.tolist() in w.tolist() for row in out)


@pytest.mark.parametrize(("begin", "rows"), [(0, 2), (1, 3), (3, 2)])
def test_masks_follow_from_where_rows_are_in_the_batch(begin: int, rows: int) -> None:
    form, draw = forms()["dropout"], torch.tensor(DRAWN)
    attrs = {**lookup("dropout").attrs, "dropout_prob": 0.4, "seed": 9}
    x = torch.ones(5, 7)
    outs = [Meta((5, 7), "float32"), Meta((5, 7), "uint8")]
    whole = form(torch, [x, None], attrs, outs, draw=draw)[1]
    here = x[begin : begin + rows], torch.tensor([begin, rows])
    assert torch.equal(form(torch, here, attrs, outs, draw=draw)[1], whole[begin : begin + rows])
    assert 0 < int(whole.sum()) < whole.numel()
    assert not torch.equal(form(torch, [x, None], attrs, outs, draw=draw + 1)[1], whole)
