"""Operators that read only an operand's shape give the same bits whatever is in it."""

import numpy as np
import pytest

import hpcdist  # noqa: F401, it fills the table of operators
from hpcdist.graph.lod import Lod
from hpcdist.graph.registry import arguments, declared_attrs, defined, lookup

IN, OUT = (4, 6), {"reduce_sum": (4, 1), "reduce_mean": (4, 1), "mean": (1,), "slice": (2, 6)}
OUT |= {"gather": (3, 6), "expand": (8, 12), "strided_slice": (2, 6)}
ATTRS = {
    "reduce_sum": {"dim": [1]},
    "reduce_mean": {"dim": [1]},
    "slice": {"axes": [0], "starts": [1], "ends": [3]},
    "strided_slice": {"axes": [0], "starts": [3], "ends": [0], "strides": [-2]},
    "expand": {"expand_times": [2, 2]},
}
# Operators that move elements: the shape of what is moved, that of the result, attributes.
MOVED = {
    "crop": (IN, IN, {}),
    "crop_tensor": (IN, (4, 3), {"shape": [-1, 3], "offsets": [0, 1]}),
    "diag": ((4,), (4, 4), {}),
    "diag_embed": (IN, (4, 6, 6), {}),
    "expand_as": (IN, IN, {}),
    "flip": (IN, IN, {"dims": [1]}),
    "pad": (IN, (5, 8), {"paddings": [0, 1, 1, 1]}),
    "pad2d": ((2, 2, 3, 2), (2, 2, 4, 3), {"paddings": [1, 0, 0, 1]}),
    "pad_constant_like": (IN, IN, {}),
    "pixel_shuffle": ((2, 4, 2, 3), (2, 1, 4, 6), {"upscale_factor": 2}),
    "roll": (IN, IN, {"shifts": [1], "dims": [0]}),
    "shuffle_channel": ((2, 4, 2, 3), (2, 4, 2, 3), {"group": 2}),
    "space_to_depth": ((2, 4, 2, 4), (2, 16, 1, 2), {"blocksize": 2}),
    "transpose": (IN, (6, 4), {"axis": [1, 0]}),
    "transpose2": (IN, (6, 4), {"axis": [1, 0]}),
    "temporal_shift": ((2, 4, 2, 3), (2, 4, 2, 3), {"seg_num": 2}),
    "tril_triu": (IN, IN, {}),
    "unpool": ((2, 2, 3, 3), (2, 2, 6, 6), {"ksize": [2, 2], "strides": [2, 2]}),
    "unfold": ((2, 2, 3, 3), (2, 8, 4), {"kernel_sizes": [2, 2]}),
}
TYPES = [type for type in defined() if lookup(type).shape_only]

# Operators on sequences, and steps of them: shapes of the inputs and of the output, or of those in
# all slots, and the lengths they are given.
TWO, ROWS = (2, 6), [2, 2]
LSTM = [(4, 24), TWO, TWO, (6, 24), (1, 42)]
GRU = [(4, 18), TWO, (6, 18), (1, 18)]
CRF = [IN, (8, 6)]
SEQUENCES = {
    "cross_entropy_grad2": ([(4, 1), (4, 1), IN, (4, 1)], IN, []),
    "gru_grad": ([*GRU, IN, (4, 18), IN, IN], GRU, [ROWS]),
    "gru_unit_grad": ([(4, 18), IN, *GRU[2:], (4, 18), IN, IN], [(4, 18), IN, *GRU[2:]], []),
    "linear_chain_crf_grad": ([*CRF, (4, 1), None, IN, IN, (8, 6), (2, 1)], CRF, [ROWS]),
    "lstm_grad": ([*LSTM, IN, IN, (4, 24), IN, IN, IN], LSTM, [ROWS]),
    "lstmp_grad": (
        [*LSTM[:4], (6, 6), LSTM[4], *[IN] * 3, (4, 24), *[IN] * 3],
        [*LSTM[:4], (6, 6), LSTM[4]],
        [ROWS],
    ),
    "warpctc_grad": ([IN, None, IN, (2, 1)], IN, [ROWS]),
    "lod_reset": ([IN, IN], IN, [ROWS, ROWS]),
    "lod_reset_grad": ([IN, IN], IN, [ROWS]),
    "sequence_concat_grad": ([[IN, IN], (8, 6)], [IN, IN], [[ROWS, ROWS]]),
    "sequence_expand": ([IN, IN], (8, 6), [ROWS, ROWS]),
    "sequence_expand_grad": ([IN, IN, (8, 6)], IN, [ROWS, ROWS]),
    "sequence_expand_as": ([TWO, IN], IN, [ROWS]),
    "sequence_expand_as_grad": ([TWO, IN, IN], TWO, [ROWS]),
    "sequence_pad_grad": ([IN, (2, 3, 6)], IN, [ROWS]),
    "sequence_pool_grad": ([IN, None, TWO], IN, [ROWS]),
    "sequence_reshape_grad": ([IN, IN], IN, [ROWS]),
    "sequence_softmax_grad": ([(4, 1), (4, 1), (4, 1)], (4, 1), [ROWS]),
    "sequence_unpad": ([(2, 3, 6), (2,)], IN, [ROWS]),
    "sequence_unpad_grad": ([(2, 3, 6), (2,), IN], (2, 3, 6), [ROWS]),
}


def result(type, filling):
    """Return the gradients of an operator whose shape-only operands hold ``filling``."""
    definition = lookup(type)
    rng = np.random.default_rng(0)
    ins, outs = {}, {}
    forward = type.removesuffix("_grad")
    moved, made, attrs = MOVED.get(forward, (IN, OUT.get(forward, IN), ATTRS.get(forward, {})))
    for slot in definition.operands:
        # None of these: the whole batch is here, and numbers say where parts begin and end.
        if slot.name == "Rows" or slot.name.startswith(("Starts", "Ends")):
            ins[slot.name] = []
            continue
        shape = made if slot.name in ("Out@GRAD", "Y@GRAD") else moved
        array = rng.uniform(-1, 1, shape).astype(np.float32)
        if slot.name == "Index":
            array = np.array([0, 2, 2])
        if slot.name == "Indices":
            array = np.arange(array.size).reshape(shape) % 9
        if slot.name in definition.shape_only:
            array[...] = filling
        ins[slot.name] = [array]
    for slot in definition.outputs:
        shape = moved if type != forward else made
        outs[slot.name] = [np.full(shape, 77, np.float32)]
    order = [*arguments(definition.operands, ins), *arguments(definition.outputs, outs)]
    attrs = declared_attrs(definition, attrs)
    if definition.state is not None:
        attrs["state"] = definition.state(type)
    definition.bind(np, *order, **attrs)()
    return [array.tobytes() for (array,) in outs.values()]


def result_of_sequences(type, filling):
    """Return the result of an operator on sequences, as `result` does."""
    definition = lookup(type)
    rng = np.random.default_rng(0)
    shapes, out, lengths = SEQUENCES[type]

    def each(make, given):
        return [make(one) for one in given] if isinstance(given, list) else make(given)

    ins = []
    for slot, shape in zip(definition.operands, shapes, strict=True):
        array = each(lambda s: s and rng.uniform(-1, 1, s).astype(np.float32), shape)
        if slot.name == "Label":
            array = np.zeros(shape, np.int64)
        for one in array if isinstance(array, list) else [array]:
            if slot.name in definition.shape_only and one is not None:
                one[...] = filling
        ins.append(array)
    outs = each(lambda s: np.full(s, 77, np.float32), out)
    lods = [each_lod(given) for given in lengths]
    attrs = declared_attrs(definition, {})
    if lods:
        attrs["lods"] = lods
    definition.bind(np, *ins, *(outs if len(definition.outputs) > 1 else [outs]), **attrs)()
    return [array.tobytes() for array in (outs if isinstance(outs, list) else [outs])]


def each_lod(given):
    lists = isinstance(given[0], list)
    return [Lod.of_lengths([one]) for one in given] if lists else Lod.of_lengths([given])


@pytest.mark.parametrize("type", TYPES)
def test_values_do_not_matter(type):
    of = result_of_sequences if type in SEQUENCES else result
    assert of(type, np.nan) == of(type, 0.5)


def test_those_that_networks_are_made_of_are_among_them():
    assert {"elementwise_add_grad", "mean_grad", "concat_grad"} <= set(TYPES)
