"""Is a review good or bad? Stacked LSTMs, every other one backwards, on ragged sentences.

    python -m hpcdist examples/sentiment.py
    mpirun -n 4 python -m hpcdist --pservers 2 examples/sentiment.py

Sentences are generated: positive and negative words among neutral ones, and "not", which inverts
the next word. The label says whether positive or negative words prevail. After each epoch the
script prints the cost and the accuracy on a test set; on many ranks they are those of a single
process.
"""

import argparse

import numpy as np

import hpcdist as fluid

layers = fluid.layers

PRAISE, BLAME, OTHERS, NOT = range(20), range(20, 40), range(40, 99), 99
WORDS = 100


def reviews(count, seed):
    """Return a reader of (words, 1 if they praise, else 0)."""

    def read():
        random = np.random.default_rng(seed)
        for _ in range(count):
            good = int(random.integers(2))
            opinions = random.integers(1, 4)
            words = []
            for opinion in [good] * (opinions + 1) + [1 - good] * (opinions - 1):
                turned = int(random.integers(4) == 0)
                said = [NOT] * turned + [int(random.choice(PRAISE if opinion != turned else BLAME))]
                words.append(said)
            words += [[int(word)] for word in random.choice(OTHERS, random.integers(0, 6))]
            order = random.permutation(len(words))
            yield [[word] for i in order for word in words[i]], good

    return read


def network(options):
    """Return the inputs, the cost, and the share of sentences that are judged rightly."""
    words = layers.data("words", [1], dtype="int64", lod_level=1)
    label = layers.data("label", [1], dtype="int64")
    vectors = layers.embedding(words, [WORDS, options.width], is_sparse=True)
    wide = layers.fc(vectors, 4 * options.width)
    lstm, _ = layers.dynamic_lstm(wide, 4 * options.width)
    hidden = [wide, lstm]
    for depth in range(2, options.depth + 1):
        wide = layers.fc(hidden, 4 * options.width)
        lstm, _ = layers.dynamic_lstm(wide, 4 * options.width, is_reverse=depth % 2 == 0)
        hidden = [wide, lstm]
    pooled = [layers.sequence_pool(value, "max") for value in hidden]
    guess = layers.fc(pooled, 2, act="softmax")
    loss = layers.mean(layers.cross_entropy(guess, label))
    return [words, label], loss, layers.accuracy(guess, label)


def main():
    """Train, and print how well a test set is judged after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=16, help="of vectors and LSTMs")
    parser.add_argument("--depth", type=int, default=3, help="LSTMs, one upon the other")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="sentences, over all trainers")
    parser.add_argument("--sentences", type=int, default=3200, help="of an epoch")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--place", type=fluid.place, default="cpu", help="cpu, or gpu: this rank's")
    options = parser.parse_args()

    fluid.default_startup_program().random_seed = 7
    inputs, loss, accuracy = network(options)
    test_program = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adagrad(options.rate).minimize(loss)
    exe = fluid.Executor(options.place)
    exe.run(fluid.default_startup_program())
    feeder = fluid.DataFeeder(inputs, fluid.CPUPlace())
    batches = fluid.batch(reviews(options.sentences, 1), options.batch_size)
    tested = fluid.batch(reviews(320, 2), 64)

    for epoch in fluid.progress(range(options.epochs)):
        losses = [exe.run(feed=feeder.feed(b), fetch_list=[loss])[0] for b in batches()]
        cost, right = np.mean(
            [
                exe.run(test_program, feed=feeder.feed(b), fetch_list=[loss, accuracy])
                for b in tested()
            ],
            axis=0,
        ).reshape(2)
        print(
            f"epoch {epoch}  train cost {np.mean(losses):.5f}  test cost {cost:.5f}  "
            f"accuracy {right:.5f}"
        )
    exe.close()


if __name__ == "__main__":
    main()
