"""Semantic role labelling (who does what?) by LSTMs and a conditional random field.

    python -m hpcdist examples/label_roles.py
    mpirun -n 4 python -m hpcdist --pservers 2 examples/label_roles.py

Ragged sentences go through bidirectional LSTMs, and a linear chain gives each word a tag: B- or I-
for the agent and for the object, or O. Sentences are generated: in some, one word swaps agent and
object, so tags depend on distant words. After each epoch the
script prints the cost, and the precision and F1 of the roles that it finds; on many ranks they are
those of a single process.
"""

import argparse

import numpy as np

import hpcdist as fluid

layers = fluid.layers

VERBS, NOUNS, FILLERS, PASSIVE = range(10), range(10, 60), range(60, 80), 80
WORDS, ROLES = 81, 2
OUTSIDE = 2 * ROLES  # tags are 2 * role for B-, one more for I-, and this


def sentences(count, seed):
    """Return a reader of (words, marks of the verb, tags)."""

    def phrase(random, role):
        words = random.choice(NOUNS, random.integers(1, 4)).tolist()
        return words, [2 * role] + [2 * role + 1] * (len(words) - 1)

    def read():
        random = np.random.default_rng(seed)
        for _ in range(count):
            passive = int(random.integers(2))
            first, first_tags = phrase(random, passive)
            second, second_tags = phrase(random, 1 - passive)
            filled = random.choice(FILLERS, random.integers(0, 3)).tolist()
            words = [*first, *filled, int(random.choice(VERBS)), *second]
            marks = [int(word in VERBS) for word in words]
            tags = first_tags + [OUTSIDE] * (len(filled) + 1) + second_tags
            if passive:
                words, marks, tags = [*words, PASSIVE], [*marks, 0], [*tags, OUTSIDE]
            yield tuple([[item] for item in items] for items in (words, marks, tags))

    return read


def network(options):
    """Return the inputs, the cost, and how many roles are found, labelled, and right."""
    inputs = [
        layers.data(name, [1], dtype="int64", lod_level=1) for name in ("words", "marks", "tags")
    ]
    words, marks, tags = inputs
    hidden = [
        layers.embedding(words, [WORDS, options.width], param_attr="word_vectors"),
        layers.embedding(marks, [2, 4], param_attr="mark_vectors"),
    ]
    for depth in range(options.depth):
        wide = layers.fc(hidden, 4 * options.width)
        lstm, _ = layers.dynamic_lstm(wide, 4 * options.width, is_reverse=depth % 2 == 0)
        hidden = [wide, lstm]
    scores = layers.fc(hidden, OUTSIDE + 1)
    cost = layers.linear_chain_crf(scores, tags, fluid.ParamAttr("chain"))
    found = layers.crf_decoding(scores, fluid.ParamAttr("chain"))
    counts = layers.chunk_eval(found, tags, "IOB", ROLES)[3:]
    return inputs, layers.mean(cost), list(counts)


def main():
    """Train, and print how many roles are found after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=16, help="of vectors and LSTMs")
    parser.add_argument("--depth", type=int, default=2, help="LSTMs, one upon the other")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32, help="sentences, over all trainers")
    parser.add_argument("--sentences", type=int, default=3200, help="of an epoch")
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--place", type=fluid.place, default="cpu", help="cpu, or gpu: this rank's")
    options = parser.parse_args()

    fluid.default_startup_program().random_seed = 7
    inputs, loss, counts = network(options)
    test_program = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.SGD(options.rate).minimize(loss)
    exe = fluid.Executor(options.place)
    exe.run(fluid.default_startup_program())
    feeder = fluid.DataFeeder(inputs, fluid.CPUPlace())
    batches = fluid.batch(sentences(options.sentences, 1), options.batch_size)
    tested = fluid.batch(sentences(320, 2), 64)

    for epoch in fluid.progress(range(options.epochs)):
        losses = [exe.run(feed=feeder.feed(b), fetch_list=[loss])[0] for b in batches()]
        found, labelled, right = sum(
            np.array(exe.run(test_program, feed=feeder.feed(b), fetch_list=counts)).reshape(3)
            for b in tested()
        )
        print(
            f"epoch {epoch}  train cost {np.mean(losses):.5f}  "
            f"precision {right / max(found, 1):.5f}  F1 {2 * right / (found + labelled):.5f}"
        )
    exe.close()


if __name__ == "__main__":
    main()
