"""Recurrent networks in Fluid's words, for the real Fluid and for hpcdist. Started by recurrent.py.

Prints one JSON line: steps per second after the warm-up, and losses (of `beam`: sums of scores).
"""

import argparse
import itertools
import json
import time

import numpy as np
import paddle.fluid as fluid

WORDS, WIDTH, SENTENCES = 1000, 128, 32
LENGTHS = range(20, 101)
BEAMS, LONGEST, END = 4, 20, 1


def weights(seed, *shape):
    """Return the attribute of a parameter with values that both contenders begin with."""
    values = np.random.RandomState(seed).uniform(-0.1, 0.1, shape).astype("float32")
    return fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(values))


def classifier(layer):
    """Return the loss of a classifier of sentences by one recurrent layer, and minimize it."""
    words = fluid.layers.data("words", [1], dtype="int64", lod_level=1)
    label = fluid.layers.data("label", [1], dtype="int64")
    found = fluid.layers.embedding(words, [WORDS, WIDTH], param_attr=weights(1, WORDS, WIDTH))
    if layer == "lstm":
        projected = fluid.layers.fc(found, 4 * WIDTH, param_attr=weights(2, WIDTH, 4 * WIDTH))
        facts = {"param_attr": weights(3, WIDTH, 4 * WIDTH), "use_peepholes": False}
        hidden, _ = fluid.layers.dynamic_lstm(projected, 4 * WIDTH, **facts)
    else:
        projected = fluid.layers.fc(found, 3 * WIDTH, param_attr=weights(2, WIDTH, 3 * WIDTH))
        hidden = fluid.layers.dynamic_gru(projected, WIDTH, param_attr=weights(3, WIDTH, 3 * WIDTH))
    last = fluid.layers.sequence_pool(hidden, "max")
    scores = fluid.layers.fc(last, 2, act="softmax", param_attr=weights(4, WIDTH, 2))
    loss = fluid.layers.mean(fluid.layers.cross_entropy(scores, label))
    # A small rate: Fluid's slopes of dynamic_lstm are other ones, see docs/differences.md.
    fluid.optimizer.SGD(0.001).minimize(loss)
    return loss


def translator():
    """Return the scores of the best beams, found step by step in a While block."""
    layers = fluid.layers
    state = layers.data("state", [WIDTH])
    first_ids = layers.data("first_ids", [1], dtype="int64", lod_level=2)
    first_scores = layers.data("first_scores", [1], lod_level=2)
    longest = layers.fill_constant([1], "int64", LONGEST)
    counter = layers.zeros([1], "int64", force_cpu=True)
    states, ids, scores = (layers.create_array(t) for t in ("float32", "int64", "float32"))
    for array, value in ((states, state), (ids, first_ids), (scores, first_scores)):
        layers.array_write(value, array=array, i=counter)
    going = layers.less_than(counter, longest)
    loop = layers.While(going)
    with loop.block():
        said = layers.array_read(ids, counter)
        score = layers.array_read(scores, counter)
        before = layers.sequence_expand(layers.array_read(states, counter), score)
        word = layers.embedding(said, [WORDS, WIDTH], param_attr=weights(1, WORDS, WIDTH))
        both = [weights(2, WIDTH, WIDTH), weights(3, WIDTH, WIDTH)]
        now = layers.fc([before, word], WIDTH, act="tanh", param_attr=both)
        likely = layers.fc(
            layers.lod_reset(now, score), WORDS, act="softmax", param_attr=weights(4, WIDTH, WORDS)
        )
        best, places = layers.topk(likely, k=BEAMS)
        total = layers.elementwise_add(layers.log(best), layers.reshape(score, [-1]), axis=0)
        chosen, of_chosen = layers.beam_search(said, score, places, total, BEAMS, END, level=0)
        layers.increment(counter, 1, in_place=True)
        for array, value in ((states, now), (ids, chosen), (scores, of_chosen)):
            layers.array_write(value, array=array, i=counter)
        more = layers.logical_not(layers.is_empty(chosen))
        layers.logical_and(layers.less_than(counter, longest), more, out=going)
    return layers.beam_search_decode(ids, scores, BEAMS, END)[1]


def batches(case, count=8):
    """Return feeds; sentences of all lengths."""
    random = np.random.RandomState(0)
    place = fluid.CPUPlace()
    found = []
    for _ in range(count):
        if case == "beam":
            lods = [[1] * SENTENCES] * 2
            ids, scores = np.zeros((SENTENCES, 1), "int64"), np.zeros((SENTENCES, 1), "float32")
            state = random.uniform(-1, 1, (SENTENCES, WIDTH)).astype("float32")
            pairs = (("first_ids", ids), ("first_scores", scores))
            tensors = {n: fluid.create_lod_tensor(v, lods, place) for n, v in pairs}
            found.append(dict(tensors, state=state))
            continue
        lengths = random.choice(LENGTHS, SENTENCES)
        words = random.randint(0, WORDS, (lengths.sum(), 1)).astype("int64")
        label = random.randint(0, 2, (SENTENCES, 1)).astype("int64")
        sentences = fluid.create_lod_tensor(words, [[int(n) for n in lengths]], place)
        found.append({"words": sentences, "label": label})
    return found


def main():
    """Run the steps and print how many a second."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=("lstm", "gru", "beam"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warmup", type=int, default=16)
    options = parser.parse_args()
    wanted = translator() if options.case == "beam" else classifier(options.case)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    feeds = itertools.cycle(batches(options.case))
    losses = []
    for step in range(options.warmup + options.steps):
        if step == options.warmup:
            begin = time.perf_counter()
        (value,) = exe.run(feed=next(feeds), fetch_list=[wanted], return_numpy=False)
        losses.append(float(np.asarray(value).sum()))
    elapsed = time.perf_counter() - begin
    print(json.dumps({"steps_per_s": options.steps / elapsed, "losses": losses}))


if __name__ == "__main__":
    main()
