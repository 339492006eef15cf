"""Handwritten digits with a multilayer perceptron: Momentum, a decaying learning rate, accuracy.

    python -m hpcdist examples/mnist_mlp.py
    mpirun -n 4 python -m hpcdist --pservers 2 examples/mnist_mlp.py

Data: scikit-learn's 8x8 digits (no network), or with --mnist MNIST's, if its files are available.
"""

import argparse

import numpy as np

import hpcdist as fluid


def network(features):
    """Return the inputs, the mean cross entropy and the accuracy of a 2-layer perceptron."""
    image = fluid.data(name="image", shape=[None, features], dtype="float32")
    label = fluid.data(name="label", shape=[None, 1], dtype="int64")
    hidden = fluid.layers.fc(image, size=128, act="relu")
    hidden = fluid.layers.fc(hidden, size=64, act="relu")
    prediction = fluid.layers.fc(hidden, size=10, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=label))
    return [image, label], loss, fluid.layers.accuracy(input=prediction, label=label)


def main():
    """Train, and print loss and accuracy of each epoch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="rows, over all trainers")
    parser.add_argument("--mnist", action="store_true", help="train on MNIST's own images")
    parser.add_argument("--place", type=fluid.place, default="cpu", help="cpu, or gpu: this rank's")
    options = parser.parse_args()

    data = fluid.dataset.mnist if options.mnist else fluid.dataset.digits
    inputs, loss, accuracy = network(data.feature_num)
    test_program = fluid.default_main_program().clone(for_test=True)
    rate = fluid.layers.exponential_decay(
        learning_rate=0.05, decay_steps=100, decay_rate=0.9, staircase=True
    )
    fluid.optimizer.Momentum(learning_rate=rate, momentum=0.9).minimize(loss)

    exe = fluid.Executor(options.place)
    exe.run(fluid.default_startup_program())
    feeder = fluid.DataFeeder(inputs, fluid.CPUPlace())
    train = fluid.batch(fluid.reader.shuffle(data.train(), 2000), options.batch_size)
    test = feeder.feed(list(data.test()()))

    for epoch in fluid.progress(range(options.epochs)):
        losses = [exe.run(feed=feeder.feed(rows), fetch_list=[loss])[0] for rows in train()]
        test_loss, right = exe.run(test_program, feed=test, fetch_list=[loss, accuracy])
        print(
            f"epoch {epoch:2d}  train loss {np.mean(losses):.5f}  "
            f"test loss {test_loss[0]:.5f}  accuracy {right[0]:.4f}"
        )
    exe.close()


if __name__ == "__main__":
    main()
