"""Predicts ratings of movies, with vectors of users, of movies, and of what a user likes.

    python -m hpcdist examples/recommender.py
    mpirun -n 4 python -m hpcdist --pservers 2 examples/recommender.py --table distributed

Matrix factorization with a ragged input: the movies that a user likes, as many as there are, add
up to the user's vector (Koren's SVD++, 2008). Data: MovieLens's small set of 100,000 ratings. The
root mean squared error on test ratings is printed after each epoch, with the AUC of predicting four
stars or more; on many ranks both are those of a single
process.
"""

import argparse

import numpy as np

import hpcdist as fluid

layers = fluid.layers


def rows_of(ids, rows, width, name, options):
    """Return rows of a table: vectors of users or movies, or how far their ratings are off."""
    return layers.embedding(
        ids,
        size=[rows, width],
        is_sparse=options.table != "dense",
        is_distributed=options.table == "distributed",
        param_attr=fluid.ParamAttr(name, initializer=fluid.initializer.Uniform(-0.05, 0.05)),
    )


def network(users, movies, mean, options):
    """Return the inputs, the mean squared error with a penalty, and the rating that is expected."""
    user = fluid.data("user", [None, 1], "int64")
    movie = fluid.data("movie", [None, 1], "int64")
    liked = fluid.data("liked", [None, 1], "int64", lod_level=1)
    stars = fluid.data("stars", [None, 1], "float32")
    own = rows_of(user, users, options.width, "users", options)
    likes = layers.sequence_pool(rows_of(liked, movies, options.width, "likes", options), "sqrt")
    taste = layers.elementwise_add(own, likes)
    vector = rows_of(movie, movies, options.width, "movies", options)
    match = layers.reduce_sum(layers.elementwise_mul(taste, vector), dim=1, keep_dim=True)
    offset = layers.elementwise_add(
        rows_of(user, users, 1, "user_offsets", options),
        rows_of(movie, movies, 1, "movie_offsets", options),
    )
    guess = layers.scale(layers.elementwise_add(match, offset), bias=mean)
    error = layers.square_error_cost(guess, stars)
    sizes = [layers.reduce_sum(layers.square(v), dim=1, keep_dim=True) for v in (taste, vector)]
    penalty = layers.scale(layers.elementwise_add(*sizes), options.penalty)
    penalty = layers.elementwise_add(penalty, layers.scale(layers.square(offset), options.penalty))
    return [user, movie, liked, stars], layers.mean(layers.elementwise_add(error, penalty)), guess


def tested_on(exe, program, guess, feeder, rows):
    """Return the root mean squared error, and the area under the curve of liked or not."""
    (found,) = exe.run(program, feed=feeder.feed(rows), fetch_list=[guess])
    stars = np.array([stars for *_, stars in rows])
    metric = fluid.metrics.Auc(num_thresholds=2**16)
    chance = np.clip(found / 5.5, 0, 1)
    metric.update(np.concatenate([1 - chance, chance], axis=1), (stars >= 4).astype("int64"))
    return np.sqrt(np.mean((found.ravel() - stars) ** 2)), metric.eval()


def main():
    """Train, and print the errors of each epoch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", choices=["dense", "sparse", "distributed"], default="sparse")
    parser.add_argument("--width", type=int, default=16, help="of a vector")
    parser.add_argument("--history", type=int, default=20, help="movies a user likes, at most")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=256, help="rows, over all trainers")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--penalty", type=float, default=0.05)
    parser.add_argument("--steps", type=int, default=0, help="stop an epoch after so many")
    parser.add_argument("--place", type=fluid.place, default="cpu", help="cpu, or gpu: this rank's")
    options = parser.parse_args()

    data = fluid.dataset.movielens
    fluid.default_startup_program().random_seed = 7
    sizes = data.max_user_id() + 1, data.max_movie_id() + 1
    inputs, loss, guess = network(*sizes, data.mean_rating(), options)
    test_program = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adagrad(options.rate).minimize(loss)

    exe = fluid.Executor(options.place)
    exe.run(fluid.default_startup_program())
    feeder = fluid.DataFeeder(inputs, fluid.CPUPlace())
    samples = fluid.reader.shuffle(data.train(options.history), 100000)
    batches = fluid.batch(samples, options.batch_size)
    tested = list(data.test(options.history)())

    for epoch in fluid.progress(range(options.epochs)):
        losses = []
        for step, rows in enumerate(batches()):
            if options.steps and step == options.steps:
                break
            losses.append(exe.run(feed=feeder.feed(rows), fetch_list=[loss])[0])
        error, area = tested_on(exe, test_program, guess, feeder, tested)
        print(
            f"epoch {epoch}  train loss {np.mean(losses):.5f}  test RMSE {error:.5f}  "
            f"AUC of 4 stars {area:.5f}"
        )
    exe.close()


if __name__ == "__main__":
    main()
