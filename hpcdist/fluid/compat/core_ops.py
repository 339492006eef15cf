"""What Fluid's module ``core`` tells of operators and their gradients, and of flags."""

from __future__ import annotations

from collections.abc import Collection, Iterator, MutableMapping, Sequence
from typing import Any

from hpcdist.base.settings import FLAGS, flag, set_flags
from hpcdist.executor.backend import ChosenPlace as Place  # noqa: F401 - Fluid's name
from hpcdist.fluid.compat.core import is_compiled_with_cuda
from hpcdist.fluid.io.descs import OpDesc
from hpcdist.graph.names import EMPTY, GRAD_SUFFIX, grad_name
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import defined, is_defined, lookup


def _get_all_register_op_kernels() -> dict[str, list[str]]:
    """Return for each operator type which kernels it has; all of them are Python's."""
    return {type: ["data_type[any]:data_layout[ANY_LAYOUT]:place[CPUPlace]"] for type in defined()}


def op_support_gpu(op_type: str) -> bool:
    """Return whether an operator can run on a GPU of this machine."""
    return is_defined(op_type) and is_compiled_with_cuda()


def has_grad_op_maker(op_type: str) -> bool:
    """Return whether an operator has a gradient."""
    return lookup(op_type).grad is not None


has_non_empty_grad_op_maker = has_grad_op_maker


def has_infer_inplace(op_type: str) -> bool:
    """Return False: buffers are shared when a Program is compiled, whatever its operators are."""
    return False


def get_grad_op_desc(
    op_desc: OpDesc, no_grad_set: Collection[str], grad_sub_block: Sequence[Any]
) -> tuple[list[OpDesc], dict[str, str]]:
    """Return the operators of an operator's gradient, not in a block, and whose gradient is what.

    Nothing flows to names of ``no_grad_set``, which are those of gradients.
    """
    op: Operator = op_desc.operator
    definition = lookup(op.type)
    if definition.grad is None:
        return [], {}

    def wanted(name: str) -> bool:
        return grad_name(name) not in no_grad_set

    made = [
        Operator(op.block, grad.type, grad.inputs, grad.outputs, grad.attrs)
        for grad in definition.grad(op, wanted)
    ]
    gradients = {
        name: name.removesuffix(GRAD_SUFFIX)
        for grad in made
        for name in grad.output_arg_names
        if name.endswith(GRAD_SUFFIX) and name != EMPTY
    }
    return [OpDesc(grad) for grad in made], gradients


def get_op_attrs_default_value(op_type: str | bytes) -> dict[str, Any]:
    """Return the attributes of an operator type that have a default, with it."""
    type = op_type.decode() if isinstance(op_type, bytes) else op_type
    return {name: value for name, value in lookup(type).attrs.items() if value is not None}


def _set_eager_deletion_mode(threshold: float, fraction: float, fast: bool) -> None:
    set_flags(
        {
            "FLAGS_eager_delete_tensor_gb": threshold / 2**30,
            "FLAGS_memory_fraction_of_eager_deletion": fraction,
            "FLAGS_fast_eager_deletion_mode": fast,
        }
    )


def _set_fuse_parameter_group_size(size: int) -> None:
    set_flags({"FLAGS_fuse_parameter_groups_size": size})


def _set_fuse_parameter_memory_size(mebibytes: float) -> None:
    set_flags({"FLAGS_fuse_parameter_memory_size": mebibytes})


class _Flags(MutableMapping[str, Any]):
    """Fluid's flags as a dictionary."""

    def __getitem__(self, name: str) -> Any:
        if name not in FLAGS:
            raise KeyError(name)
        return flag(name).read()

    def __setitem__(self, name: str, value: Any) -> None:
        set_flags({name: value})

    def __delitem__(self, name: str) -> None:
        raise KeyError(f"a flag cannot be removed: {name}")

    def __iter__(self) -> Iterator[str]:
        return iter(FLAGS)

    def __len__(self) -> int:
        return len(FLAGS)


_flags = _Flags()


def globals() -> MutableMapping[str, Any]:
    """Return the flags by name."""
    return _flags
