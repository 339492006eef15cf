"""A block: operators in order, and the variables they name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.graph import names
from hpcdist.graph.op_role import DEVICE_ATTR, ROLE_ATTR, ROLE_VAR_ATTR
from hpcdist.graph.operator import Operator
from hpcdist.graph.owner import OwningProgram
from hpcdist.graph.printing import block_text
from hpcdist.graph.registry import check_read, lookup
from hpcdist.graph.shape_rules import infer_outputs
from hpcdist.graph.unread import as_read
from hpcdist.graph.variable import Parameter, Variable


class Block:
    """A list of operators with a dict of variables; block 0 of a Program is global."""

    def __init__(self, program: OwningProgram, idx: int, parent_idx: int = -1) -> None:
        self.program = program
        self.idx = idx
        self.parent_idx = parent_idx
        self.ops: list[Operator] = []
        self.vars: dict[str, Variable] = {}

    # -- variables ---------------------------------------------------------------------------
    def create_var(self, name: str | None = None, **facts: Any) -> Variable:
        """Add a variable; an existing one of that name is returned unchanged.

        ``initializer=`` appends its operator to this block; a fact that is None is not said.
        GraphError if the variable that is there has another shape than is given.
        """
        initializer = facts.pop("initializer", None)
        facts = {fact: value for fact, value in facts.items() if value is not None}
        name = name or names.generate("_generated_var")
        if name not in self.vars:
            variable = self.add_var(Variable(self, name, **facts))
            if initializer is not None:
                initializer(variable, self)
            return variable
        var, shape = self.vars[name], facts.get("shape")
        if shape is not None and var.shape and var.shape != tuple(shape):
            raise GraphError(
                f"create_var: {name!r} already exists, with shape {var.shape}, not {shape}"
            )
        return var

    def create_parameter(
        self, name: str, *, initializer: Callable[..., Any] | None = None, **facts: Any
    ) -> Parameter:
        """Add a parameter to the global block.

        ``initializer`` appends its operator to this block, unless one there makes the parameter.
        """
        block = self.program.global_block()
        shape = facts.get("shape")
        known = all(d >= 0 for d in shape or () if isinstance(d, int))
        if (
            not shape
            or not (known or facts.get("is_distributed"))
            or facts.get("dtype", "") is None
        ):
            raise GraphError(
                f"create_parameter: {name!r} must have a shape such as [3, 4] and an element type, "
                f"got shape {shape!r} and {facts.get('dtype')!r}"
            )
        parameter = Parameter(block, name, **facts)
        block.add_var(parameter)
        if initializer is not None and parameter.op is None:
            initializer(parameter, self)
        return parameter

    def add_var(self, var: Variable) -> Variable:
        """Enter a variable that belongs to this block."""
        self.vars[var.name] = var
        self.program.touch()
        return var

    def remove_var(self, name: str) -> None:
        """Drop a variable."""
        del self.vars[name]
        self.program.touch()

    _remove_var = remove_var

    def _rename_var(self, name: str, new_name: str) -> Variable:
        """Call a variable otherwise, here and in the operators of this block."""
        var = self.var(name)
        if self.find_var(new_name) is not None:
            raise GraphError(f"rename_var: {new_name!r} already exists")
        self.vars = {new_name if n == name else n: v for n, v in self.vars.items()}
        var.name = new_name
        for op in self.ops:
            op.rename({name: new_name})
        return var

    def _clone_variable(self, var: Variable, force_persistable: bool = True) -> Variable:
        """Add a variable like one of another Program; parameters become plain variables."""
        kinds = ("shape", "dtype", "type", "stop_gradient", "lod_level", "is_data", "checks_feed")
        facts = {kind: getattr(var, kind) for kind in kinds}
        return self.create_var(var.name, persistable=force_persistable or var.persistable, **facts)

    def has_var(self, name: str) -> bool:
        """Return whether the block itself has this variable."""
        return name in self.vars

    def var(self, name: str) -> Variable:
        """Return a variable of this very block; GraphError if it is not there."""
        try:
            return self.vars[name]
        except KeyError:
            raise GraphError(f"block {self.idx} has no variable {name!r}") from None

    def is_persistable(self, name: str) -> bool:
        """Return whether a value, of here or of the parents, outlives steps."""
        var = self.find_var(name)
        return var is not None and var.persistable

    def find_var(self, name: str) -> Variable | None:
        """Look a variable up here and in the parents."""
        block: Block | None = self
        while block is not None:
            if name in block.vars:
                return block.vars[name]
            block = block.parent
        return None

    def _var_recursive(self, name: str) -> Variable:
        var = self.find_var(name)
        if var is None:
            raise GraphError(f"no variable {name!r} in block {self.idx} or its parents")
        return var

    @property
    def parent(self) -> Block | None:
        """The block around this one."""
        return None if self.parent_idx < 0 else self.program.block(self.parent_idx)

    @property
    def forward_block_idx(self) -> int:
        """Fluid's mark of a block of gradients; here every block has its own operators: -1."""
        return -1

    def iter_parameters(self) -> Iterator[Parameter]:
        """Yield the parameters of this block in order of creation."""
        yield from self.all_parameters()

    def all_parameters(self) -> list[Parameter]:
        """Parameters of this block in order of creation."""
        return [v for v in self.vars.values() if isinstance(v, Parameter)]

    # -- operators ---------------------------------------------------------------------------
    def append_op(
        self,
        type: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
        stop_gradient: bool = False,
    ) -> Operator:
        """Add an operator at the end; its shape rule sets its outputs' shapes and types.

        ``stop_gradient`` is for Fluid's imperative mode, and has no meaning in a Program.
        """
        if type is None:
            raise GraphError(
                "`type` to initialized an Operator can not be None."
            )  # in Fluid's words
        return self.insert_op(len(self.ops), type, inputs, outputs, attrs)

    def prepend_op(self, type: str, *args: Any, **kwargs: Any) -> Operator:
        """Add an operator at the head, as startup programs do."""
        return self.insert_op(0, type, *args, **kwargs)

    _prepend_op = prepend_op

    def insert_op(
        self,
        index: int,
        type: str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Operator:
        """Add an operator before position ``index``."""
        definition = lookup(type)
        op = Operator(self, type, inputs or {}, outputs or {}, attrs or {})
        self.ops.insert(index, op)
        try:
            op.attrs = {**definition.attrs, **as_read(definition, op.attrs)}
            op.attrs.setdefault(ROLE_ATTR, int(self.program.current_role))
            if ROLE_VAR_ATTR not in op.attrs and self.program.current_role_var:
                op.attrs[ROLE_VAR_ATTR] = list(self.program.current_role_var)
            if self.program.current_device:
                op.attrs.setdefault(DEVICE_ATTR, self.program.current_device)
            check_read(definition, op.inputs)
            self.infer(op)
        except (GraphError, GraphTypeError) as error:
            place = op.place
            del self.ops[index]
            raise error.__class__(f"{place} {op}: {error}") from None
        self.program.touch()
        return op

    _insert_op = insert_op

    def add_op(self, op: Operator, index: int | None = None) -> Operator:
        """Take over an operator as it stands, without running its shape rule."""
        op.block = self
        self.ops.insert(len(self.ops) if index is None else index, op)
        self.program.touch()
        return op

    def remove_op(self, index: int) -> None:
        """Drop the operator at a position."""
        del self.ops[index]
        self.program.touch()

    _remove_op = remove_op

    def last_writers(self) -> dict[str, int]:
        """Return for each variable the index of the last operator that writes it."""
        return {name: i for i, op in enumerate(self.ops) for name in op.output_arg_names}

    def infer(self, op: Operator) -> None:
        """Set the shapes and types of an operator's outputs by its shape rule."""
        inputs = {
            slot: [self._var_recursive(name).meta for name in argument_names]
            for slot, argument_names in op.inputs.items()
        }
        for slot, metas in infer_outputs(op.type, inputs, op.attrs).items():
            for name, meta in zip(op.output(slot), metas):
                if name == names.EMPTY:
                    continue
                var = self.find_var(name)
                if var is None:
                    var = self.create_var(name)
                elif var.persistable and var.shape and var.shape == meta.shape:
                    continue  # already declared
                var.shape, var.dtype, var.type = meta.shape, meta.dtype, meta.type
                var.lod_level = 0 if meta.lod is None else meta.lod.level

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """Return the block as text, as it stands in the Program's."""
        return block_text(self, with_details)

    __str__ = to_string

    def __iter__(self) -> Iterator[Operator]:
        return iter(self.ops)


def block_of(member: Variable | Operator) -> Block:
    """Return the block that a variable or an operator stands in."""
    assert isinstance(member.block, Block)
    return member.block
