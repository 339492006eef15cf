"""Handwritten digits: softmax regression, a perceptron or a convolutional net on MNIST.

    python -m hpcdist examples/recognize_digits.py
    python -m hpcdist examples/recognize_digits.py --net mlp
    mpirun -n 4 python -m hpcdist --pservers 2 examples/recognize_digits.py

Without MNIST's training file, the first 8000 images of its test file train and the other 2000 test.
"""

import argparse
import itertools

import numpy as np

import hpcdist as fluid

HELD_OUT = 8000  # of the test file's images, those from here on only test


def softmax_regression(image):
    """Return one linear layer's probabilities."""
    return fluid.layers.fc(image, size=10, act="softmax")


def multilayer_perceptron(image):
    """Return the probabilities of two hidden layers."""
    hidden = fluid.layers.fc(image, size=200, act="tanh")
    hidden = fluid.layers.fc(hidden, size=200, act="tanh")
    return fluid.layers.fc(hidden, size=10, act="softmax")


def convolutional_net(image):
    """Return the probabilities of a LeNet with batch normalization."""
    pool = fluid.nets.simple_img_conv_pool(
        input=image, filter_size=5, num_filters=20, pool_size=2, pool_stride=2, act="relu"
    )
    pool = fluid.layers.batch_norm(pool)
    pool = fluid.nets.simple_img_conv_pool(
        input=pool, filter_size=5, num_filters=50, pool_size=2, pool_stride=2, act="relu"
    )
    return fluid.layers.fc(pool, size=10, act="softmax")


NETS = {"softmax": softmax_regression, "mlp": multilayer_perceptron, "conv": convolutional_net}


def readers():
    """Return readers of samples to train with and to test with."""
    mnist = fluid.dataset.mnist
    if mnist.available("train"):
        return mnist.train(), mnist.test()
    print(f"no training file of MNIST here: training on {HELD_OUT} images of its test file")
    samples = mnist.test()
    return (
        lambda: itertools.islice(samples(), HELD_OUT),
        lambda: itertools.islice(samples(), HELD_OUT, None),
    )


def main():
    """Train; print loss and accuracy of each epoch on images that did not train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--net", choices=sorted(NETS), default="conv")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="rows, over all trainers")
    parser.add_argument("--place", type=fluid.place, default="cpu", help="cpu, or gpu: this rank's")
    options = parser.parse_args()

    image = fluid.data(name="img", shape=[None, 1, 28, 28], dtype="float32")
    label = fluid.data(name="label", shape=[None, 1], dtype="int64")
    prediction = NETS[options.net](image)
    loss = fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=label))
    accuracy = fluid.layers.accuracy(input=prediction, label=label)
    test_program = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adam(learning_rate=0.001).minimize(loss)

    exe = fluid.Executor(options.place)
    exe.run(fluid.default_startup_program())
    feeder = fluid.DataFeeder([image, label], fluid.CPUPlace())
    train_samples, test_samples = readers()
    shuffled = fluid.reader.shuffle(train_samples, buf_size=10_000)
    train = fluid.batch(shuffled, options.batch_size, drop_last=True)
    test = fluid.batch(test_samples, 500)

    for epoch in range(options.epochs):
        losses = [exe.run(feed=feeder.feed(rows), fetch_list=[loss])[0] for rows in train()]
        tested = [
            (len(rows), *exe.run(test_program, feeder.feed(rows), [loss, accuracy]))
            for rows in test()
        ]
        weights, test_losses, hits = (np.ravel(column) for column in zip(*tested, strict=True))
        print(
            f"epoch {epoch}  train loss {np.mean(losses):.5f}  "
            f"test loss {np.average(test_losses, weights=weights):.5f}  "
            f"accuracy {np.average(hits, weights=weights):.4f}",
            flush=True,
        )
    exe.close()


if __name__ == "__main__":
    main()
