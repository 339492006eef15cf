"""Time the layers of conv_cases with hpcdist's kernels. Started by conv.py."""

from __future__ import annotations

import json

import numpy as np
from conv_cases import LAYERS, Layer, least_time

import hpcdist.ops  # noqa: F401  (fills the table of operators)
from hpcdist.graph.registry import Meta, arguments, declared_attrs, lookup
from hpcdist.graph.shape_rules import infer_outputs


def operator(layer: Layer) -> tuple[str, dict[str, tuple[int, ...]], dict[str, object]]:
    """Return the operator's type, the shapes of its inputs, and its attributes."""
    x = (layer.images, layer.channels, layer.extent, layer.extent)
    pair = {"strides": [layer.stride] * 2, "paddings": [layer.padding] * 2}
    if layer.kind == "conv":
        w = (layer.filters, layer.channels // layer.groups, layer.size, layer.size)
        return "conv2d", {"Input": x, "Filter": w}, {**pair, "groups": layer.groups}
    if layer.kind == "pool":
        return "pool2d", {"X": x}, {**pair, "ksize": [layer.size] * 2}
    vectors = dict.fromkeys(("Scale", "Bias", "Mean", "Variance"), (layer.channels,))
    return "batch_norm", {"X": x, **vectors}, {}


def times(layer: Layer) -> list[float]:
    """Return the seconds of the operator and of its gradient."""
    random = np.random.default_rng(0)
    kind, shapes, attrs = operator(layer)

    def array(shape: tuple[int, ...]) -> list[np.ndarray]:
        return [random.uniform(0.5, 1.5, shape).astype(np.float32)]

    held = {slot: array(shape) for slot, shape in shapes.items()}
    metas = {slot: [Meta(shape)] for slot, shape in shapes.items()}
    held |= {slot: array(meta.shape) for slot, (meta,) in infer_outputs(kind, metas, attrs).items()}
    held |= {f"{slot}@GRAD": array(value.shape) for slot, (value,) in held.items()}
    out = []
    for name in (kind, f"{kind}_grad"):
        op = lookup(name)
        ins, outs = arguments(op.inputs, held), arguments(op.outputs, held)
        out.append(least_time(op.bind(np, *ins, *outs, **declared_attrs(op, attrs))))
    return out


if __name__ == "__main__":
    print(json.dumps({name: times(layer) for name, layer in LAYERS.items()}), flush=True)
