"""Gradient cases of recurrent operators; sequences of length 0 are among those drawn."""

from __future__ import annotations

from typing import Any

from tests.support.ops import Case, Draw, case

_OF_GATES = ("sigmoid", "tanh")  # bounded: beyond 13, Fluid's sigmoid stays as it is
_ACTIVATIONS = (*_OF_GATES, "identity")


def _lstm_inputs(draw: Draw, width: int, fed: int, use_peepholes: bool) -> dict[str, Any]:
    lengths = draw.lengths()
    sequences = draw.ragged(lengths, [4 * width])
    sequences.set(draw.floats((sum(lengths), 4 * width)))
    inputs = {
        "Input": sequences,
        "Weight": draw.floats([fed, 4 * width], -1, 1),
        "Bias": draw.floats([1, (7 if use_peepholes else 4) * width]),
    }
    if draw.bool():
        inputs["H0"] = draw.floats([len(lengths), fed])
        inputs["C0"] = draw.floats([len(lengths), width])
    return inputs


def _lstm_attrs(draw: Draw) -> dict[str, Any]:
    names = [f"{gate}_activation" for gate in ("cell", "candidate")]
    attrs: dict[str, Any] = {name: draw.of(*_ACTIVATIONS) for name in names}
    attrs |= {"gate_activation": draw.of(*_OF_GATES)}
    return attrs | {"use_peepholes": draw.bool(), "is_reverse": draw.bool()}


@case("lstm")
def _lstm(draw: Draw) -> Case:
    width, attrs = draw.int(1, 3), _lstm_attrs(draw)
    inputs = _lstm_inputs(draw, width, width, attrs["use_peepholes"])
    return Case(inputs, attrs, targets=draw.of(["Hidden"], ["Cell"], ["Hidden", "Cell"]))


@case("lstmp")
def _lstmp(draw: Draw) -> Case:
    width, fed, attrs = draw.int(1, 3), draw.int(1, 3), _lstm_attrs(draw)
    inputs = _lstm_inputs(draw, width, fed, attrs["use_peepholes"])
    inputs["ProjWeight"] = draw.floats([width, fed])
    attrs |= {"proj_activation": draw.of("identity", attrs["cell_activation"])}
    return Case(inputs, attrs, targets=draw.of(["Projection"], ["Cell"], ["Projection", "Cell"]))


@case("gru")
def _gru(draw: Draw) -> Case:
    width, lengths = draw.int(1, 3), draw.lengths()
    sequences = draw.ragged(lengths, [3 * width])
    sequences.set(draw.floats((sum(lengths), 3 * width)))
    inputs: dict[str, Any] = {"Input": sequences, "Weight": draw.floats([width, 3 * width], -1, 1)}
    if draw.bool():
        inputs["Bias"] = draw.floats([1, 3 * width])
    if draw.bool():
        inputs["H0"] = draw.floats([len(lengths), width])
    attrs: dict[str, Any] = {"activation": draw.of(*_ACTIVATIONS)}
    attrs |= {"gate_activation": draw.of(*_OF_GATES)}
    attrs |= {name: draw.bool() for name in ("is_reverse", "origin_mode")}
    return Case(inputs, attrs, targets=["Hidden"])


@case("gru_unit")
def _gru_unit(draw: Draw) -> Case:
    rows, width = draw.int(1, 3), draw.int(1, 3)
    inputs: dict[str, Any] = {
        "Input": draw.floats([rows, 3 * width]),
        "HiddenPrev": draw.floats([rows, width]),
        "Weight": draw.floats([width, 3 * width], -1, 1),
    }
    if draw.bool():
        inputs["Bias"] = draw.floats([1, 3 * width])
    attrs: dict[str, Any] = {n: draw.int(0, 2) for n in ("gate_activation", "activation")}
    return Case(inputs, attrs | {"origin_mode": draw.bool()}, targets=["Hidden"])


@case("lstm_unit")
def _lstm_unit(draw: Draw) -> Case:
    rows, width = draw.int(1, 3), draw.int(1, 3)
    inputs = {"X": draw.floats([rows, 4 * width]), "C_prev": draw.floats([rows, width])}
    return Case(inputs, {"forget_bias": draw.of(0.0, 0.7)})


@case("cudnn_lstm")
def _cudnn_lstm(draw: Draw) -> Case:
    steps, rows, width, size = (draw.int(1, 3) for _ in range(4))
    layers, ways = draw.int(1, 2), draw.int(1, 2)
    widths = [width] + [ways * size] * (layers - 1)
    states = [layers * ways, rows, size]
    inputs = {
        "Input": draw.floats([steps, rows, width]),
        "InitH": draw.floats(states),
        "InitC": draw.floats(states),
        "W": draw.floats([sum(ways * 4 * size * (w + size + 2) for w in widths)], -1, 1),
    }
    attrs = {"is_bidirec": ways == 2, "input_size": width, "hidden_size": size}
    return Case(inputs, {**attrs, "num_layers": layers}, targets=["Out", "last_h", "last_c"])


# -- tags and alignments ---------------------------------------------------------------------------
def _tags(draw: Draw, count: int, *shape: int) -> Any:
    return draw.rng.integers(0, count, shape)


def tagged(draw: Draw) -> dict[str, Any]:
    """Return scores of tags in sequences, weights between them, and labels."""
    tags, lengths = draw.int(2, 3), draw.lengths()
    labels = draw.ragged(lengths, [1])
    labels.set(_tags(draw, tags, sum(lengths), 1))
    scores = draw.ragged(lengths, [tags])
    return {"Emission": scores, "Transition": draw.floats([tags + 2, tags]), "Label": labels}


@case("linear_chain_crf")
def _chain(draw: Draw) -> Case:
    if draw.bool():
        return Case(tagged(draw), targets=["LogLikelihood"])
    count, longest, tags = draw.int(1, 3), draw.int(1, 4), draw.int(2, 3)
    inputs = {
        "Emission": draw.floats([count, longest, tags]),
        "Transition": draw.floats([tags + 2, tags]),
        "Label": _tags(draw, tags, count, longest),
        "Length": _tags(draw, longest + 1, count),
    }
    return Case(inputs, targets=["LogLikelihood"])


@case("warpctc")
def _ctc(draw: Draw) -> Case:
    labels = [draw.int(0, 2) for _ in range(draw.int(1, 3))]
    tokens = draw.ragged(labels, [1])
    tokens.set(_tags(draw, 2, sum(labels), 1).astype("int32"))
    # Long enough for all labels with blanks between: else the loss is 0, whatever is scored.
    scores = draw.ragged([2 * n + draw.int(0, 2) for n in labels], [3])
    return Case({"Logits": scores, "Label": tokens}, {"blank": 2}, targets=["Loss"])
