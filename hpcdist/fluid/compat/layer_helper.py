"""Fluid's module ``layer_helper``, for custom layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.layers import helper
from hpcdist.fluid.layers.param_attr import ParamAttr
from hpcdist.graph.variable import Parameter, Variable

__all__ = ["LayerHelper"]


class FluidLayerHelper(helper.LayerHelper):
    """One call of a layer, with the arguments that it was called with.

    ``helper = LayerHelper("my_layer", **locals())`` in a custom layer: its parameters and
    results are then named ``my_layer_0.w_0``, ``my_layer_0.tmp_0``.
    """

    def __init__(self, layer_type: str, **kwargs: Any) -> None:
        super().__init__(layer_type, kwargs.get("name"))
        self.kwargs = {**kwargs, "name": self.name}

    # -- arguments -------------------------------------------------------------------------------
    def multiple_input(self, input_param_name: str = "input") -> list[Variable]:
        """Return the Variables of an argument that takes one or several."""
        value = self.kwargs.get(input_param_name, [])
        inputs = list(value) if isinstance(value, (list, tuple)) else [value]
        for variable in inputs:
            if not isinstance(variable, Variable):
                raise GraphTypeError(
                    f"{self.name!r}: {input_param_name} must be a Variable, got {variable!r}"
                )
        return inputs

    def input(self, input_param_name: str = "input") -> Variable:
        """Return the Variable of an argument that takes one."""
        inputs = self.multiple_input(input_param_name)
        if len(inputs) != 1:
            raise GraphError(f"{self.layer_type} layer only takes one input, got {len(inputs)}")
        return inputs[0]

    def input_dtype(self, input_param_name: str = "input") -> str | None:
        """Return the element type that all Variables of an argument have."""
        dtypes = list(dict.fromkeys(x.dtype for x in self.multiple_input(input_param_name)))
        if len(dtypes) > 1:
            raise GraphError(f"{self.name!r}: the inputs' element types differ: {dtypes}")
        return dtypes[0] if dtypes else None

    @property
    def param_attr(self) -> ParamAttr | None:
        """What was said of the layer's weights."""
        return ParamAttr.of(self.kwargs.get("param_attr"))

    @property
    def bias_attr(self) -> ParamAttr | None:
        """What was said of its bias; None: it has none."""
        return ParamAttr.of(self.kwargs.get("bias_attr"))

    def multiple_param_attr(self, length: int) -> list[ParamAttr | None]:
        """Return the weight attributes for each of so many inputs."""
        value = self.kwargs.get("param_attr")
        attrs = list(value) if isinstance(value, (list, tuple)) else [value]
        if len(attrs) not in (1, length):
            raise GraphError(f"{self.name!r}: {len(attrs)} param_attr for {length} inputs")
        return [ParamAttr.of(attr) for attr in (attrs if len(attrs) == length else attrs * length)]

    def iter_inputs_and_params(
        self, input_param_name: str = "input"
    ) -> Iterator[tuple[Variable, ParamAttr | None]]:
        """Yield each input with what was said of its weights."""
        inputs = self.multiple_input(input_param_name)
        yield from zip(inputs, self.multiple_param_attr(len(inputs)))

    def is_instance(self, param_name: str, cls: type) -> None:
        """Refuse an argument of another type."""
        value = self.kwargs.get(param_name)
        if not isinstance(value, cls):
            raise GraphTypeError(
                f"{self.layer_type}: {param_name} must be {cls.__name__}, got {value!r}"
            )

    # -- variables -------------------------------------------------------------------------------
    def create_variable_for_type_inference(
        self, dtype: Any, stop_gradient: bool = False
    ) -> Variable:
        """Create a value; the operator that writes it sets its shape."""
        return self.new_var(dtype, stop_gradient)

    create_tmp_variable = create_variable_for_type_inference

    def create_variable(self, *args: Any, **kwargs: Any) -> Variable:
        """Create a variable in the current block."""
        return self.main_program.current_block().create_var(*args, **kwargs)

    def create_or_get_global_variable(
        self, name: str, *args: Any, **kwargs: Any
    ) -> tuple[Variable, bool]:
        """Return a variable of the global block, and whether it had to be created."""
        block = self.main_program.global_block()
        if block.has_var(name):
            return block.var(name), False
        return block.create_var(name, *args, **kwargs), True

    def set_variable_initializer(self, var: Variable, initializer: Any) -> None:
        """Make the startup program initialize a variable."""
        self.initialize(var, initializer)

    def get_parameter(self, name: str) -> Parameter:
        """Return a parameter of the main program; GraphError if it is none."""
        parameter = self.main_program.global_block().var(name)
        if not isinstance(parameter, Parameter):
            raise GraphError(f"no Parameter name {name} found")
        return parameter

    # -- ends of layers --------------------------------------------------------------------------
    def append_bias_op(
        self, input_var: Variable, dim_start: int = 1, dim_end: int | None = None
    ) -> Variable:
        """Add a bias over dimensions ``dim_start`` up to ``dim_end``, unless bias_attr is False."""
        shape: Sequence[int] = input_var.shape[dim_start:dim_end]
        bias = self.create_parameter(self.bias_attr or False, shape, input_var.dtype, is_bias=True)
        if bias is None:
            return input_var
        inputs = {"X": input_var, "Y": bias}
        attrs = {"axis": dim_start}
        return self.apply("elementwise_add", inputs, attrs, dtype=input_var.dtype)

    def append_activation(self, input_var: Variable) -> Variable:
        """Append the activation that ``act`` names, if it names one."""
        return self.activate(input_var, self.kwargs.get("act"))


LayerHelper = FluidLayerHelper  # as Fluid's module has it
