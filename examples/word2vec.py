"""Word vectors, trained by predicting the next word from four (Bengio et al., 2003).

    python -m hpcdist examples/word2vec.py
    mpirun -n 4 python -m hpcdist --pservers 2 examples/word2vec.py --sparse

Data: Shakespeare (1.1 MB), or any text with --text. After each epoch, loss and accuracy on lines
not seen in training are printed; on many ranks they are those of a single process.
"""

import argparse

import numpy as np

import hpcdist as fluid

N = 5  # words in a row; the last is guessed


def network(dict_size, width, hidden_size, sparse):
    """Return inputs, mean cross entropy, accuracy, and the first of four look-ups in one table."""
    words = [fluid.data(f"word{k}", [None, 1], "int64") for k in range(N)]
    vectors = [
        fluid.layers.embedding(
            word,
            size=[dict_size, width],
            is_sparse=sparse,
            param_attr=fluid.ParamAttr("shared_w", initializer=fluid.initializer.Normal(0.0, 0.1)),
        )
        for word in words[:-1]
    ]
    joined = fluid.layers.concat(vectors, axis=1)
    hidden = fluid.layers.fc(joined, hidden_size, act="tanh")
    guess = fluid.layers.fc(hidden, dict_size, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(guess, words[-1]))
    return words, loss, fluid.layers.accuracy(guess, words[-1]), vectors[0]


def neighbours(vectors, dictionary, word, count=4):
    """Return the words whose vectors point the same way as a word's."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    nearest = np.argsort(-(unit @ unit[dictionary[word]]), kind="stable")[1 : count + 1]
    names = list(dictionary)
    return [names[k] for k in nearest]


def main():
    """Train, and print loss and accuracy of each epoch, then neighbours of some words."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", help="a file of plain text")
    parser.add_argument("--least", type=int, default=20, help="occurrences of a word of its own")
    parser.add_argument("--width", type=int, default=32, help="of a word's vector")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--sparse", action="store_true", help="send rows of the table only")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=200, help="rows, over all trainers")
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=0, help="stop an epoch after so many")
    parser.add_argument("--place", type=fluid.place, default="cpu", help="cpu, or gpu: this rank's")
    options = parser.parse_args()

    dictionary = fluid.dataset.text.build_dict(options.least, options.text)
    fluid.default_startup_program().random_seed = 7
    sizes = len(dictionary), options.width, options.hidden
    words, loss, accuracy, looked_up = network(*sizes, options.sparse)
    test_program = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adagrad(options.rate).minimize(loss)

    exe = fluid.Executor(options.place)
    exe.run(fluid.default_startup_program())
    feeder = fluid.DataFeeder(words, fluid.CPUPlace())
    samples = fluid.dataset.text.train(dictionary, N, path=options.text)
    batches = fluid.batch(fluid.reader.shuffle(samples, 50000), options.batch_size)
    tested = list(fluid.dataset.text.test(dictionary, N, path=options.text)())[:5000]

    for epoch in fluid.progress(range(options.epochs)):
        losses = []
        for step, rows in enumerate(batches()):
            if options.steps and step == options.steps:
                break
            losses.append(exe.run(feed=feeder.feed(rows), fetch_list=[loss])[0])
        fetched = exe.run(test_program, feed=feeder.feed(tested), fetch_list=[loss, accuracy])
        print(
            f"epoch {epoch}  train loss {np.mean(losses[-100:]):.5f}  "
            f"test loss {fetched[0][0]:.5f}  accuracy {fetched[1][0]:.5f}"
        )
    # A sparse table lives on the servers: its rows are looked up, all look-ups at once.
    every_word = np.arange(len(dictionary)).reshape(-1, 1)
    feed = {word.name: every_word for word in words}
    (vectors,) = exe.run(test_program, feed=feed, fetch_list=[looked_up])
    for word in [word for word in ("king", "you", "my", "come") if word in dictionary]:
        print(f"near {word!r}: {', '.join(neighbours(vectors, dictionary, word))}")
    exe.close()


if __name__ == "__main__":
    main()
