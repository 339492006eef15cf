"""sample_logits: the scores of some classes only, the same ones for all rows."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import by_row
from hpcdist.ops.common import define_with_grad, same
from hpcdist.ops.embedding.run_kernels import add_at
from hpcdist.ops.loss.labels import range_check
from hpcdist.ops.loss.sampled_softmax import FAR, LOG_UNIFORM, chance, log_uniform
from hpcdist.ops.random.counter import Draw, Draws, filler, key_of, part_of
from hpcdist.ops.random.samplers import SeededWords, log_uniform_classes
from hpcdist.ops.shape_patterns import shaped
from hpcdist.ops.types import ArrayModule, Call, Metas

_SL_ATTRS = {
    "use_customized_samples": False,
    "uniq": True,
    "remove_accidental_hits": True,
    "num_samples": 1,
    "seed": 0,
}


def _sl_infer(
    logits: Meta, labels: Meta, samples: Meta | None, chances: Meta | None, num_samples: int, **_
) -> Metas:
    rows, trues = labels.shape
    if num_samples > logits.shape[1]:
        raise GraphError(f"cannot draw {num_samples} different classes of {logits.shape[1]}")
    shape = (rows, trues + num_samples)
    drawn, scores = Meta(shape, "int64"), Meta(shape, logits.dtype)
    dims = (Meta((0, *x.shape), x.dtype) for x in (logits, labels))  # of which none is an element
    return drawn, scores, scores, Meta((rows, trues), "int64"), *dims


def _different(draw: Draw, count: int) -> tuple[np.ndarray, int]:
    """Draw until ``count`` different numbers are there; return them and how many were drawn."""
    numbers: dict[int, None] = {}
    tries = 0
    while len(numbers) < count:
        for number in draw():
            tries += 1
            numbers.setdefault(int(number))
            if len(numbers) == count:
                break
    return np.array(list(numbers)), tries


def _sl_bind(
    xp: ArrayModule,
    logits,
    labels,
    given_samples,
    given_chances,
    samples,
    chances,
    sampled,
    sampled_labels,
    *dims,
    use_customized_samples: bool,
    remove_accidental_hits: bool,
    num_samples: int,
    seed: int,
    state: Draws,
    **_,
) -> Call:
    classes, trues = logits.shape[1], labels.shape[1]
    part = part_of(np.empty(2 * num_samples + 16), None, None)
    words = filler(np, part, key_of(seed, state.name), state)
    stream = SeededWords(seed)
    check = range_check(xp, labels, classes, "sample_logits", "classes")

    def draw() -> None:
        begin = count(step=part.size)

        def some() -> Any:
            if seed:  # Fluid's, the same in every run
                return log_uniform_classes(stream(next(begin), part.size), classes + 1, classes)
            return log_uniform(np, words(), classes + 1, classes)

        numbers, tries = _different(some, num_samples)
        samples[:, :trues] = labels
        samples[:, trues:] = xp.asarray(numbers)
        one = chance(xp, samples, classes + 1, LOG_UNIFORM, None)
        # How often a class is expected among the samples, all of which are different.
        chances[...] = (
            one * num_samples if tries == num_samples else -xp.expm1(tries * xp.log1p(-one))
        )

    def run() -> None:
        check()
        if use_customized_samples:
            range_check(xp, given_samples, classes, "sample_logits", "classes")()
            samples[...], chances[...] = given_samples, given_chances
        else:
            draw()
        scores = xp.take_along_axis(logits, samples, 1)
        if remove_accidental_hits:
            hits = (samples[:, trues:, None] == samples[:, None, :trues]).any(2)
            scores[:, trues:] -= hits * logits.dtype.type(FAR)
        sampled[...] = xp.clip(scores - xp.log(chances), -FAR, FAR)
        sampled_labels[...] = xp.arange(trues)

    return run


def _sl_grad(xp: ArrayModule, logits, samples, dsampled, dlogits, **_) -> None:
    dlogits.fill(0)
    add_at(xp, dlogits, (xp.arange(len(logits)).reshape(-1, 1), samples), dsampled)


define_with_grad(
    "sample_logits",
    "Logits, Labels, CustomizedSamples?, CustomizedProbabilities? -> "
    "Samples, Probabilities, SampledLogits, SampledLabels, LogitsDim?, LabelsDim?",
    "Logits, Samples, SampledLogits@GRAD -> Logits@GRAD",
    rows=by_row(),
    attrs=_SL_ATTRS,
    infer=shaped(
        "Logits: n c; Labels: n t; CustomizedSamples: n s; CustomizedProbabilities: n s", _sl_infer
    ),
    bind=_sl_bind,
    state=Draws,
    grad_infer=lambda logits, samples, dsampled, **_: same(logits),
    grad_kernel=_sl_grad,
)
