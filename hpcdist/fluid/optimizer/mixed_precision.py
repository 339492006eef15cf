"""Training in mixed precision: ``fluid.contrib.mixed_precision``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hpcdist.base import checks
from hpcdist.base.checks import GRAPH
from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid import layers
from hpcdist.fluid.clip import GradientClipBase
from hpcdist.fluid.optimizer.base import ParamGrads, create_persistable
from hpcdist.fluid.optimizer.wrapper import AnyOptimizer, OptimizerWrapper
from hpcdist.graph.block import Block, block_of
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.names import generate
from hpcdist.graph.op_role import ROLE_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import default_main_program, program_of
from hpcdist.graph.variable import Variable

WHITE = {"conv2d", "matmul", "mul"}
BLACK = {
    "cos_sim",
    "cross_entropy",
    "cross_entropy2",
    "exp",
    "log",
    "mean",
    "sigmoid_cross_entropy_with_logits",
    "softmax",
    "softmax_with_cross_entropy",
    "square",
    "sum",
}
GRAY = {
    *(f"elementwise_{kind}" for kind in ("add", "sub", "mul", "div", "max", "min", "pow", "mod")),
    "elementwise_floordiv",
    *("batch_norm", "cast", "dropout", "fill_constant", "flatten2", "gather", "gaussian_random"),
    *("gaussian_random_batch_size_like", "get_tensor_from_selected_rows", "leaky_relu"),
    *("lookup_table", "pool2d", "pool3d", "rank", "relu", "relu6", "reshape2", "scale", "sigmoid"),
    *("sign", "slice", "soft_relu", "stack", "tanh", "top_k", "transpose2"),
    *("uniform_random_batch_size_like", "unstack"),
}
# They only move values, so what they give has half precision if what they are given has it.
_MOVES = {"flatten2", "relu", "reshape2", "slice", "stack", "transpose2", "unstack"}
_RAW = ".float32"  # after the names of values, as ``cast`` below


@dataclass(frozen=True)
class Half:
    """A type of 16 bits: the operator that rounds to it, what names of such values end in."""

    rounding: str
    cast: str


FLOAT16 = Half("round_to_float16", ".cast_fp16")
BFLOAT16 = Half("round_to_bfloat16", ".cast_bf16")


class AutoMixedPrecisionLists:
    """Which operators compute in half precision: white ones do, black ones never.

    Gray ones do as what they read was computed. All others compute in single precision. Custom
    lists move operators from one to another; what reads or makes a variable of
    ``custom_black_varnames`` is black.
    """

    def __init__(
        self,
        custom_white_list: Iterable[str] | None = None,
        custom_black_list: Iterable[str] | None = None,
        custom_black_varnames: Iterable[str] | None = None,
    ) -> None:
        white = checks.names("custom_white_list", custom_white_list, GRAPH)
        black = checks.names("custom_black_list", custom_black_list, GRAPH)
        if white & black:
            raise GraphError(f"{sorted(white & black)} are in both custom lists, white and black")
        self.white_list = (WHITE | white) - black
        self.black_list = (BLACK | black) - white
        self.gray_list = GRAY - white - black
        self.black_varnames = checks.names("custom_black_varnames", custom_black_varnames, GRAPH)


class AutoMixedPrecisionListsBF16(AutoMixedPrecisionLists):
    """The same by Paddle 2's names: white is ``bf16``, black is ``fp32``."""

    def __init__(
        self,
        custom_bf16_list: Iterable[str] | None = None,
        custom_fp32_list: Iterable[str] | None = None,
        custom_fp32_varnames: Iterable[str] | None = None,
    ) -> None:
        super().__init__(custom_bf16_list, custom_fp32_list, custom_fp32_varnames)


class _InHalf(OptimizerWrapper):
    """An optimizer of a network some of whose operators have half precision."""

    def __init__(self, optimizer: AnyOptimizer, amp_lists: AutoMixedPrecisionLists | None) -> None:
        super().__init__(optimizer)
        inner: Any = optimizer
        while isinstance(inner, OptimizerWrapper):
            if isinstance(inner, _InHalf):
                raise GraphError(
                    f"{type(self).__name__}: the optimizer given holds {type(inner).__name__}: "
                    "decorate with one type of half precision"
                )
            inner = inner.inner_optimizer
        self._lists = AutoMixedPrecisionLists() if amp_lists is None else amp_lists
        if not isinstance(self._lists, AutoMixedPrecisionLists):
            raise GraphTypeError(
                f"amp_lists: expected AutoMixedPrecisionLists(...), got {amp_lists!r}"
            )


class OptimizerInBfloat16(_InHalf):
    """What `decorate_bf16` returns; losses and gradients are not scaled."""

    def _backward(self, loss: Variable, *args: Any) -> ParamGrads:
        round_to_half(block_of(loss), self._lists, BFLOAT16)
        return super()._backward(loss, *args)


class OptimizerWithMixedPrecision(_InHalf):
    """What `decorate` returns; the loss is minimized through a scaled one."""

    def __init__(
        self,
        optimizer: AnyOptimizer,
        amp_lists: AutoMixedPrecisionLists | None,
        init_loss_scaling: float,
        dynamic: bool,
        options: dict[str, Any],
    ) -> None:
        super().__init__(optimizer, amp_lists)
        self._dynamic, self._scaling_attrs = dynamic, options
        self._init_loss_scaling = init_loss_scaling
        self._kept: list[Variable] = []  # the scaling, and if it changes, steps counted
        self._scaled_loss: Variable | None = None

    def get_loss_scaling(self) -> Variable:
        """Return the factor of the loss; it may be fetched.

        float32 [1], persistable.
        """
        if not self._kept:
            name = generate("loss_scaling")
            self._kept.append(create_persistable(name, (1,), self._init_loss_scaling))
            counters = ("num_good_steps", "num_bad_steps") if self._dynamic else ()
            for name in counters:
                self._kept.append(create_persistable(generate(name), (1,), 0.0, "int32"))
        return self._kept[0]

    def get_scaled_loss(self) -> Variable | None:
        """Return the scaled loss, from which the backward pass starts; None before it is built."""
        return self._scaled_loss

    def _backward(self, loss: Variable, *args: Any) -> ParamGrads:
        """The gradients are those of the scaled loss; `apply_gradients` divides them."""
        scaling = self.get_loss_scaling()
        if program_of(scaling) is not program_of(loss):
            raise GraphError(
                "mixed precision: this optimizer scales the loss of another program: decorate "
                "another one for a second program"
            )
        round_to_half(block_of(loss), self._lists, FLOAT16)
        self._scaled_loss = layers.elementwise_mul(loss, scaling)
        return super()._backward(self._scaled_loss, *args)

    def apply_gradients(
        self, params_grads: ParamGrads, grad_clip: GradientClipBase | None = None
    ) -> list[Operator]:
        """Append what divides gradients, and makes them 0 if one of them is not finite; updates."""
        for p, g in params_grads:
            if g.type == VarType.SELECTED_ROWS:
                raise GraphError(
                    f"mixed precision with rows of table {p.name!r}: use embedding(is_sparse=False)"
                )
        program, scaling = default_main_program(), self.get_loss_scaling()
        block = program.global_block()
        new = [
            block.create_var(f"{g.name}@UNSCALED", shape=g.shape, dtype=g.dtype)
            for _, g in params_grads
        ]
        with program.role_guard(OpRole.OPTIMIZE):
            infinite = block.create_var(generate("found_infinite"), shape=(1,), dtype="bool")
            block.append_op(
                "check_finite_and_unscale",
                {"X": [g for _, g in params_grads], "Scale": scaling},
                {"Out": new, "FoundInfinite": infinite},
                {"zeroes": self._dynamic},
            )
            if self._dynamic:
                _, good, bad = self._kept
                inputs = {"PrevLossScaling": scaling}
                inputs |= {"FoundInfinite": infinite, "InGoodSteps": good, "InBadSteps": bad}
                changed = {"LossScaling": scaling}
                changed |= {"OutGoodSteps": good, "OutBadSteps": bad}
                block.append_op("update_loss_scaling", inputs, changed, self._scaling_attrs)
        pairs = [(p, unscaled) for (p, _), unscaled in zip(params_grads, new)]
        return super().apply_gradients(pairs, grad_clip)


def decorate(
    optimizer: AnyOptimizer,
    amp_lists: AutoMixedPrecisionLists | None = None,
    init_loss_scaling: float = 2**15,
    incr_every_n_steps: int = 1000,
    decr_every_n_nan_or_inf: int = 2,
    incr_ratio: float = 2.0,
    decr_ratio: float = 0.8,
    use_dynamic_loss_scaling: bool = True,
) -> OptimizerWithMixedPrecision:
    """Return an optimizer that trains in mixed precision, of the default main program.

    What is in half precision is rounded to it, and computed in single precision. A step whose
    gradients are not all finite, on any trainer, updates by zeros on all of them; after
    ``decr_every_n_nan_or_inf`` such steps the loss is scaled less, after ``incr_every_n_steps``
    good ones more. Without ``use_dynamic_loss_scaling`` all of them update by what they are. With
    parameter servers, and local SGD, it is refused. Make another one for a second program.
    """
    steps = {
        "incr_every_n_steps": incr_every_n_steps,
        "decr_every_n_nan_or_inf": decr_every_n_nan_or_inf,
    }
    ratios = {"incr_ratio": incr_ratio, "decr_ratio": decr_ratio}
    options: dict[str, Any] = {n: checks.integer(n, v, 1, errors=GRAPH) for n, v in steps.items()}
    options |= {name: checks.positive(name, value, GRAPH) for name, value in ratios.items()}
    scaling = checks.positive("init_loss_scaling", init_loss_scaling, GRAPH)
    dynamic = bool(use_dynamic_loss_scaling)
    return OptimizerWithMixedPrecision(optimizer, amp_lists, scaling, dynamic, options)


def decorate_bf16(
    optimizer: AnyOptimizer,
    amp_lists: AutoMixedPrecisionLists | None = None,
    use_pure_bf16: bool = False,
    use_bf16_guard: bool | None = None,
) -> OptimizerInBfloat16:
    """Return an optimizer that trains in bfloat16, of the default main program.

    What is in half precision is rounded to bfloat16; parameters, gradients of parameters and the
    optimizer's state are float32. It has float32's exponents, so no loss is scaled, and parameter
    servers, tables and local SGD take it. ``use_pure_bf16``, parameters in bfloat16, and
    ``use_bf16_guard``, which chooses layers for that, are refused: GraphError.
    """
    if use_pure_bf16 or use_bf16_guard:
        name = "use_pure_bf16" if use_pure_bf16 else "use_bf16_guard"
        raise GraphError(
            f"{name}: parameters stay float32, for in bfloat16 small updates are lost: leave it "
            "out, and choose operators by amp_lists"
        )
    return OptimizerInBfloat16(optimizer, amp_lists)


def round_to_half(block: Block, lists: AutoMixedPrecisionLists, kind: Half) -> None:
    """Round what operators in half precision read and give; gradients are rounded with them."""
    ops, block.ops = block.ops, []
    colour: dict[str, str] = {}  # by value: of the operator that made it
    half: set[str] = set()  # values that have no more than half precision
    for op in ops:
        result = _colour(op, lists, colour)
        colour.update(dict.fromkeys(op.output_arg_names, result))
        for name in op.output_arg_names:  # what is written again is rounded again
            half -= {name, name + kind.cast}
        if result != "white":
            block.add_op(op)
            continue
        for slot, names in op.inputs.items():
            if op.type != "batch_norm" or slot == "X":
                op.inputs[slot] = [_rounded(block, name, half, kind) for name in names]
        outputs = [
            (slot, number, name)
            for slot, names in op.outputs.items()
            for number, name in enumerate(names)
            if _is_single(block, name) and slot in ("Out", "Output", "Y")
        ]
        half.update(name for _, _, name in outputs)
        block.add_op(op)
        if op.type in _MOVES:
            continue
        for slot, number, name in outputs:
            raw = _like(block, name, name + _RAW)
            op.outputs[slot][number] = raw
            _append_rounding(block, raw, name, kind)
    block.program.touch()


def _colour(op: Operator, lists: AutoMixedPrecisionLists, colour: dict[str, str]) -> str:
    names = {*op.input_arg_names, *op.output_arg_names}
    if names & lists.black_varnames or op.type in lists.black_list:
        return "black"
    if op.type in lists.white_list:
        return "white"
    if op.type not in lists.gray_list:
        return "black"
    read = {colour.get(name, "") for name in op.input_arg_names}
    return "black" if "black" in read else "white" if "white" in read else ""


def _is_single(block: Block, name: str) -> bool:
    var = block.find_var(name)
    return var is not None and var.dtype == "float32" and var.type == VarType.LOD_TENSOR


def _rounded(block: Block, name: str, half: set[str], kind: Half) -> str:
    """Return the name of a value in half precision."""
    if name in half or not _is_single(block, name):
        return name
    rounded = name + kind.cast
    if rounded not in half:
        _append_rounding(block, name, _like(block, name, rounded), kind)
        half.add(rounded)
    return rounded


def _like(block: Block, name: str, new: str) -> str:
    var = block.find_var(name)
    assert var is not None
    facts: dict[str, Any] = {"shape": var.shape, "dtype": var.dtype, "lod_level": var.lod_level}
    if not block.has_var(new):
        block.create_var(new, **facts)
    return new


def _append_rounding(block: Block, name: str, rounded: str, kind: Half) -> None:
    facts = {ROLE_ATTR: int(OpRole.FORWARD)}
    block.add_op(Operator(block, kind.rounding, {"X": name}, {"Out": rounded}, facts))
