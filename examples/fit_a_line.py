"""Linear regression: the price of a house from 13 numbers about its surroundings.

    python -m hpcdist examples/fit_a_line.py                          # one process
    mpirun -n 4 python -m hpcdist --pservers 2 examples/fit_a_line.py # 2 trainers, 2 servers

Both print the same losses. Data: uci_housing if its file is in HPCDIST_DATA_HOME or the cache, else
scikit-learn's diabetes data, which need no network.
"""

import argparse

import numpy as np

import hpcdist as fluid


def network(features):
    """Return the input variables and the mean squared error of a linear model."""
    x = fluid.data(name="x", shape=[None, features], dtype="float32")
    y = fluid.data(name="y", shape=[None, 1], dtype="float32")
    prediction = fluid.layers.fc(input=x, size=1, act=None)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(input=prediction, label=y))
    return [x, y], loss


def main():
    """Train, and print the loss of each epoch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=20, help="rows, over all trainers")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--place", type=fluid.place, default="cpu", help="cpu, or gpu: this rank's")
    options = parser.parse_args()

    data = fluid.dataset.regression()
    inputs, loss = network(data.feature_num)
    test_program = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.SGD(learning_rate=options.learning_rate).minimize(loss)

    exe = fluid.Executor(options.place)
    exe.run(fluid.default_startup_program())
    feeder = fluid.DataFeeder(inputs, fluid.CPUPlace())
    train = fluid.batch(fluid.reader.shuffle(data.train(), 500), options.batch_size)
    test = feeder.feed(list(data.test()()))

    print(f"data: {data.__name__.rpartition('.')[2]}, {data.feature_num} features")
    for epoch in fluid.progress(range(options.epochs)):
        losses = [
            exe.run(fluid.default_main_program(), feed=feeder.feed(rows), fetch_list=[loss])[0]
            for rows in train()
        ]
        (test_loss,) = exe.run(test_program, feed=test, fetch_list=[loss])
        print(f"epoch {epoch:2d}  train loss {np.mean(losses):.6f}  test loss {test_loss[0]:.6f}")
    exe.close()


if __name__ == "__main__":
    main()
