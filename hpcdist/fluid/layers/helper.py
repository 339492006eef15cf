"""LayerHelper: names, parameters and operators for the functions in `hpcdist.layers`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from hpcdist.base.checks import extents
from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.layers.extents import from_variables
from hpcdist.fluid.layers.param_attr import ParamAttr, ParamLike
from hpcdist.graph import names
from hpcdist.graph.dtypes import DTypeLike
from hpcdist.graph.program import Program, default_main_program, default_startup_program
from hpcdist.graph.registry import lookup
from hpcdist.graph.variable import Parameter, Variable

# By type of ParamAttr: what makes a parameter that is itself computed by layers. It is called
# with the helper, the attr, a name, the initializer, shape and dtype.
MAKERS: dict[type[ParamAttr], Callable[..., Variable]] = {}


class LayerHelper:
    """One call of a layer: ``fc_0`` with its weights ``fc_0.w_0`` and values ``fc_0.tmp_0``."""

    def __init__(self, layer_type: str, name: str | None = None) -> None:
        self.layer_type = layer_type
        self.name = name or names.generate(layer_type)

    @property
    def main_program(self) -> Program:
        """The Program being built."""
        return default_main_program()

    @property
    def startup_program(self) -> Program:
        """The Program that initializes it."""
        return default_startup_program()

    def append_op(
        self, type: str, inputs: Any = None, outputs: Any = None, attrs: Any = None
    ) -> Any:
        """Append an operator to the current block of the main program.

        Variables among the attributes go to the slots that hold them.
        """
        slots, attributes = self.slots_of(type, attrs or {})
        block = self.main_program.current_block()
        return block.append_op(type, {**(inputs or {}), **slots}, outputs, attributes)

    def slots_of(
        self, type: str, attrs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the input slots that Variables among the attributes go to, and the attributes."""
        return from_variables(self.main_program.current_block(), self.layer_type, type, attrs)

    def new_var(self, dtype: DTypeLike = "float32", stop_gradient: bool = False) -> Variable:
        """Create a value ``<layer>.tmp_<n>``; the operator that writes it sets its shape."""
        name = names.generate(f"{self.name}.tmp")
        block = self.main_program.current_block()
        return block.create_var(name, dtype=dtype, stop_gradient=stop_gradient)

    def apply(
        self,
        type: str,
        inputs: Any,
        attrs: Any = None,
        *,
        slot: str = "Out",
        out: Variable | None = None,
        dtype: DTypeLike = "float32",
        stop_gradient: bool = False,
    ) -> Variable:
        """Append an operator with one output, ``out`` or a new one, and return that."""
        made = self.new_var(dtype, stop_gradient) if out is None else out
        self.append_op(type, inputs, {slot: made}, attrs)
        return made

    def apply_all(
        self,
        type: str,
        inputs: Any,
        outputs: Mapping[str, DTypeLike],
        attrs: Any = None,
        *,
        constant: Collection[str] = (),
    ) -> tuple[Variable, ...]:
        """Append an operator and return its outputs, all of them new.

        ``outputs``: its slots with the element types of the values; gradients do not flow into
        those that are ``constant``.
        """
        made = {slot: self.new_var(kind, slot in constant) for slot, kind in outputs.items()}
        self.append_op(type, inputs, made, attrs)
        return tuple(made.values())

    def create_parameter(
        self,
        attr: Any,
        shape: Sequence[int],
        dtype: DTypeLike = "float32",
        is_bias: bool = False,
        default_initializer: Any = None,
        *,
        is_distributed: bool = False,
    ) -> Any:
        """Create a parameter, with its initializer in the startup program; None if attr is False.

        A parameter of that name that is there already is shared; its shape must be the same. As in
        Fluid it begins as the first ``attr`` says, and is trained as the last one says. The number
        of rows of one that ``is_distributed`` may be -1: any number.
        """
        from hpcdist.fluid.initializer import (  # initializers append ops, as layers do
            Constant,
            Xavier,
        )

        attributes = ParamAttr.of(attr)
        if attributes is None:
            return None
        shape = extents(shape)
        sized = shape[1:] if is_distributed and shape[0] == -1 else shape
        if any(d <= 0 for d in sized):
            raise GraphError(
                f"{self.layer_type} {self.name!r}: parameter shape {shape} must be positive; "
                "only the batch dimension of its input may be -1"
            )
        name = attributes.name or names.generate(f"{self.name}.{'b' if is_bias else 'w'}")
        policy = attributes.row_policy
        if policy is not None and not is_distributed:
            raise GraphError(
                f"{self.layer_type} {self.name!r}: row_policy is for tables whose rows come and "
                "go: is_sparse=True, is_distributed=True"
            )
        if make := next((MAKERS[of] for of in type(attributes).__mro__ if of in MAKERS), None):
            return make(
                self, attributes, name, attributes.initializer or default_initializer, shape, dtype
            )
        training = {
            "trainable": attributes.trainable,
            "optimize_attr": {"learning_rate": attributes.learning_rate},
            "regularizer": attributes.regularizer,
            "gradient_clip_attr": attributes.gradient_clip,
            "do_model_average": attributes.do_model_average,
            "need_clip": attributes.need_clip,
        }
        existing = self.main_program.global_block().vars.get(name)
        if existing is not None:
            if existing.shape != shape:
                raise GraphError(
                    f"parameter {name!r} is {existing.shape}, cannot share it as {shape}"
                )
            if isinstance(existing, Parameter):
                if policy not in (None, existing.row_policy):
                    raise GraphError(
                        f"parameter {name!r} has {existing.row_policy}, cannot share it "
                        f"with {policy}"
                    )
                existing.train_as(**training)
            return existing
        facts = {"shape": shape, "dtype": dtype, "is_distributed": is_distributed, **training}
        facts["row_policy"] = policy
        initializer = attributes.initializer or default_initializer
        if initializer is None:
            initializer = Constant(0.0) if is_bias else Xavier()
        startup = self.startup_program.global_block().create_parameter(name, **facts)
        initializer(startup, startup.block)
        return self.main_program.current_block().create_parameter(name, **facts)

    def create_global_variable(
        self, name: str | None = None, initializer: Any = None, **facts: Any
    ) -> Variable:
        """Create a variable in the global block, initialized in the startup program if asked."""
        var = self.main_program.global_block().create_var(
            name or names.generate(f"{self.name}.tmp"), **facts
        )
        if initializer is not None:
            self.initialize(var, initializer)
        return var

    def initialize(self, var: Variable, initializer: Any) -> None:
        """Put the initializer of a main-program variable into the startup program."""
        block = self.startup_program.global_block()
        if not block.has_var(var.name):
            initializer(block.add_var(var.copied_to(block)), block)

    def add_bias(self, x: Variable, bias_attr: ParamLike, axis: int = 1) -> Variable:
        """Append ``elementwise_add`` of a bias over the dimensions from ``axis`` on."""
        bias = self.create_parameter(bias_attr, x.shape[axis:], x.dtype, is_bias=True)
        if bias is None:
            return x
        return self.apply("elementwise_add", {"X": x, "Y": bias}, {"axis": axis}, dtype=x.dtype)

    def activate(self, x: Variable, act: str | None) -> Variable:
        """Append an activation by name; None changes nothing."""
        if not isinstance(act, (str, type(None))):
            raise GraphTypeError(f"{self.name!r}: act must be the name of one, got {act!r}")
        return x if act is None else self.apply(act, {"X": x}, dtype=x.dtype)


def present(**operands: Any) -> dict[str, Any]:
    """Return the input slots whose operands are given: not None."""
    return {slot: operand for slot, operand in operands.items() if operand is not None}


def append(
    type: str,
    inputs: Mapping[str, Any],
    name: str | None = None,
    *,
    slot: str = "Out",
    dtype: DTypeLike | None = None,
    stop_gradient: bool = False,
    **attrs: Any,
) -> Variable:
    """Append an operator that is a complete layer, with one new output; return that.

    ``inputs``: Variables by slot; ``dtype``: the element type, by default the first input's.
    """
    kind = next(iter(inputs.values())).dtype if dtype is None else dtype
    helper = LayerHelper(type, name)
    return helper.apply(type, inputs, attrs, slot=slot, dtype=kind, stop_gradient=stop_gradient)


def append_all(
    type: str,
    inputs: Mapping[str, Any],
    attrs: Any,
    outputs: Mapping[str, DTypeLike],
    name: str | None = None,
    constant: Collection[str] | None = None,
) -> tuple[Variable, ...]:
    """Append an operator that is a complete layer, as `LayerHelper.apply_all`; return its outputs.

    Gradients flow into no output if ``constant`` is None.
    """
    fixed = outputs if constant is None else constant
    return LayerHelper(type, name).apply_all(type, inputs, outputs, attrs, constant=fixed)


def declared(
    type: str,
    arguments: Mapping[str, Any],
    constant: Collection[str] | None = (),
    order: Sequence[str] = (),
    **others: Any,
) -> Any:
    """Append an operator that is a complete layer; return its output, or all of them in a tuple.

    ``arguments``: the layer's own, ``locals()``. A slot or attribute has the argument of its name,
    but for case and underscores (GtBoxes is gt_boxes), or that of ``others``; what is None is left
    out, and numbers get the type of the attribute's default. ``constant``: as in `append_all`.
    ``order``: outputs that come in this order, not in the operator's.
    """
    definition, given = lookup(type), _by_plain_names(arguments, others)
    slots = {slot.name: given.get(_plain(slot.name)) for slot in definition.inputs}
    attrs = declared_attrs(type, arguments, **others)
    moved = iter(order)
    names = [slot.name for slot in definition.outputs]
    outputs = dict.fromkeys((next(moved) if n in order else n for n in names), "float32")
    made = append_all(type, present(**slots), attrs, outputs, arguments.get("name"), constant)
    return made if len(made) > 1 else made[0]


def declared_attrs(type: str, arguments: Mapping[str, Any], **others: Any) -> dict[str, Any]:
    """Return an operator's attributes from a layer's arguments, as `declared` takes them."""
    given = _by_plain_names(arguments, others)
    return {
        name: _like(f"{type}: {name}", default, given[_plain(name)])
        for name, default in lookup(type).attrs.items()
        if given.get(_plain(name)) is not None
    }


def _by_plain_names(arguments: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    return {_plain(name): value for name, value in (*arguments.items(), *others.items())}


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _like(what: str, default: Any, value: Any) -> Any:
    """Return an argument as an attribute of the default's type."""
    if isinstance(default, tuple) and isinstance(value, Iterable):
        return [_like(what, default[0], one) if default else one for one in value]
    if isinstance(value, Variable) or not isinstance(default, (bool, float)):
        return value
    try:
        return type(default)(value)
    except (TypeError, ValueError):
        raise GraphTypeError(f"{what}: expected a number, got {value!r}") from None


def named(name: str, layer: Callable[..., Any], doc: str | None = None) -> Callable[..., Any]:
    """Give a layer that is one of a family its name, and what is told of it alone."""
    layer.__name__ = layer.__qualname__ = name
    layer.__doc__ = doc or layer.__doc__
    return layer


def into(out: Variable | None, result: Variable) -> Variable:
    """Return a value, copied into ``out`` if that is given."""
    if out is None:
        return result
    return LayerHelper("assign").apply("assign", {"X": result}, out=out)
