"""Will it be clicked? Wide & deep, or DeepFM, over tables of categories.

    python -m hpcdist examples/ctr.py
    mpirun -n 4 python -m hpcdist --pservers 2 examples/ctr.py --model deepfm --table distributed

Data: generated clicks in Criteo's shape (13 numbers, 26 categories), or with --data adult the
census of 1994 (who earns more than 50,000 dollars?). The area under the ROC curve on other rows is
printed after each epoch; on many ranks it is that of a single process.
"""

import argparse

import numpy as np

import hpcdist as fluid

layers = fluid.layers


def rows_of(ids, width, name, slots, options):
    """Return the rows [n, slots, width] of a table for ids [n, slots, 1]."""
    return layers.embedding(
        ids,
        size=[sum(slots), width],
        is_sparse=options.table != "dense",
        is_distributed=options.table == "distributed",
        param_attr=fluid.ParamAttr(name, initializer=fluid.initializer.Uniform(-0.01, 0.01)),
    )


def network(number_num, slots, options):
    """Return the inputs, the mean loss, the chance of a click and the area while training."""
    numbers = fluid.data("numbers", [None, number_num], "float32")
    ids = fluid.data("ids", [None, len(slots), 1], "int64")
    label = fluid.data("label", [None, 1], "int64")
    vectors = rows_of(ids, options.width, "vectors", slots, options)
    weights = rows_of(ids, 1, "weights", slots, options)
    wide = layers.reduce_sum(layers.reshape(weights, [-1, len(slots)]), dim=1, keep_dim=True)
    wide = layers.elementwise_add(wide, layers.fc(numbers, 1))
    flat = layers.reshape(vectors, [-1, len(slots) * options.width])
    hidden = layers.concat([flat, numbers], axis=1)
    for width in (128, 64):
        hidden = layers.fc(hidden, width, act="relu")
    score = layers.elementwise_add(wide, layers.fc(hidden, 1))
    if options.model == "deepfm":
        score = layers.elementwise_add(score, pairs(vectors))
    chance = layers.sigmoid(score)
    cost = layers.sigmoid_cross_entropy_with_logits(score, layers.cast(label, "float32"))
    area, _, _ = layers.auc(chance, label)
    return [numbers, ids, label], layers.mean(cost), chance, area


def pairs(vectors):
    """Return the sum of the products of all pairs of vectors [n, slots, width]: Rendle's trick."""
    squared_sum = layers.square(layers.reduce_sum(vectors, dim=1))
    sum_of_squares = layers.reduce_sum(layers.square(vectors), dim=1)
    both = layers.elementwise_sub(squared_sum, sum_of_squares)
    return layers.scale(layers.reduce_sum(both, dim=1, keep_dim=True), 0.5)


def in_one_table(reader, slots):
    """Return a reader whose categories have ids [slots, 1] of their own in one table."""
    first = np.cumsum([0, *slots[:-1]])

    def read():
        for numbers, ids, label in reader():
            yield numbers, (ids + first)[:, None], label

    return read


def area_on(exe, program, chance, feeder, rows, batch_size):
    """Return the exact area under the curve of what a Program says of samples."""
    metric = fluid.metrics.Auc(num_thresholds=2**16)
    for begin in range(0, len(rows), batch_size):
        part = rows[begin : begin + batch_size]
        (found,) = exe.run(program, feed=feeder.feed(part), fetch_list=[chance])
        labels = np.array([label for *_, label in part])
        metric.update(np.concatenate([1 - found, found], axis=1), labels)
    return metric.eval()


def main():
    """Train, and print loss and areas of each epoch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["clicks", "adult"], default="clicks")
    parser.add_argument("--model", choices=["wide_deep", "deepfm"], default="wide_deep")
    parser.add_argument("--table", choices=["dense", "sparse", "distributed"], default="sparse")
    parser.add_argument("--width", type=int, default=8, help="of a category's vector")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=256, help="rows, over all trainers")
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--steps", type=int, default=0, help="stop an epoch after so many")
    parser.add_argument("--place", type=fluid.place, default="cpu", help="cpu, or gpu: this rank's")
    options = parser.parse_args()

    data = getattr(fluid.dataset, options.data)
    slots = data.category_sizes()
    fluid.default_startup_program().random_seed = 7
    inputs, loss, chance, area = network(data.number_num, slots, options)
    test_program = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adagrad(options.rate).minimize(loss)

    exe = fluid.Executor(options.place)
    exe.run(fluid.default_startup_program())
    feeder = fluid.DataFeeder(inputs, fluid.CPUPlace())
    samples = fluid.reader.shuffle(in_one_table(data.train(), slots), 20000)
    batches = fluid.batch(samples, options.batch_size)
    tested = list(in_one_table(data.test(), slots)())[: 40 * options.steps or None]

    for epoch in fluid.progress(range(options.epochs)):
        losses = []
        for step, rows in enumerate(batches()):
            if options.steps and step == options.steps:
                break
            fetched = exe.run(feed=feeder.feed(rows), fetch_list=[loss, area])
            losses.append(fetched[0][0])
        test_area = area_on(exe, test_program, chance, feeder, tested, 2048)
        print(
            f"epoch {epoch}  train loss {np.mean(losses):.5f}  train AUC {fetched[1][0]:.5f}  "
            f"test AUC {test_area:.5f}"
        )
    exe.close()


if __name__ == "__main__":
    main()
