"""What Fluid calls the proto of an operator: its slots and attributes, by name."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Slot, defined, is_defined, lookup

# Outputs that only a gradient reads: nobody needs to name them, and they are made all the same.
_INTERMEDIATE = frozenset(
    (
        *("Activated", "Alpha", "Argmax", "BatchCellPreAct", "BatchGate", "BatchHidden"),
        *("BatchResetHiddenPrev", "Diff", "EmissionExps", "GTMatchMask", "Gate", "Index"),
        *("IntermediateOut", "IntermediateVal"),
        *("LabelsDim", "LogitsDim", "Mask", "MatchX", "MaxIndex", "Mean", "Means", "Norm"),
        *("ObjectnessMask", "PreOut", "Probabilities", "ResetHiddenPrev", "Residual"),
        *("SampleLabels", "SampleLogits", "SampledLogits", "Samples", "SavedMean"),
        *("SavedVariance", "Scales", "Softmax", "TransitionExps", "Variance", "WarpCTCGrad"),
        *("XNorm", "XShape", "YNorm"),
    )
)


@dataclass(frozen=True)
class VarProto:
    """One slot: ``duplicable`` holds any number of variables, ``dispensable`` may be empty."""

    name: str
    duplicable: bool
    dispensable: bool
    intermediate: bool


@dataclass(frozen=True)
class AttrProto:
    """One attribute."""

    name: str


@dataclass(frozen=True)
class OpProto:
    """The slots and attributes of an operator type."""

    type: str
    inputs: tuple[VarProto, ...]
    outputs: tuple[VarProto, ...]
    attrs: tuple[AttrProto, ...]


class OpProtoHolder:
    """Fluid's way to ask for the protos: ``OpProtoHolder.instance().get_op_proto("relu")``."""

    @classmethod
    @functools.cache
    def instance(cls) -> OpProtoHolder:
        """Return the one that there is."""
        return cls()

    @property
    def op_proto_map(self) -> dict[str, OpProto]:
        """The protos of all operators, by type."""
        return {type: self.get_op_proto(type) for type in defined()}

    def get_op_proto(self, type: str) -> OpProto:
        """Return the proto of an operator type; GraphError (a ValueError) if there is none."""
        if not is_defined(type):
            raise GraphError(f'Operator "{type}" has not been registered.')  # in Fluid's words
        definition = lookup(type)
        return OpProto(
            type,
            tuple(VarProto(s.name, s.many, s.optional, False) for s in definition.inputs),
            tuple(map(_output, definition.outputs)),
            tuple(map(AttrProto, definition.attrs)),
        )


def _output(slot: Slot) -> VarProto:
    intermediate = slot.name in _INTERMEDIATE
    return VarProto(slot.name, slot.many, slot.optional and not intermediate, intermediate)
