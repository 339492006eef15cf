"""Generates digits from noise: a generator and a discriminator, two programs trained in turns.

    python -m hpcdist examples/gan.py
    mpirun -n 4 python -m hpcdist --pservers 2 examples/gan.py

Both programs use the discriminator's parameters, by name; each updates only its own. Data:
scikit-learn's 8x8 digits (no network). The last number is the similarity of the mean generated
digit and the mean real one.
"""

import argparse

import numpy as np

import hpcdist as fluid

NOISE = 16


def dense(value, size, name, act=None):
    """Return a fully connected layer whose parameters other programs find by ``name``."""
    names = {"param_attr": f"{name}.w", "bias_attr": f"{name}.b"}
    return fluid.layers.fc(value, size, act=act, **names)


def generator(noise, pixels):
    """Return images [rows, pixels] from -1 to 1."""
    hidden = dense(noise, 128, "generator.1", act="relu")
    return dense(hidden, pixels, "generator.2", act="tanh")


def discriminator(image):
    """Return one logit for each image: how real it looks."""
    hidden = fluid.layers.leaky_relu(dense(image, 128, "discriminator.1"), 0.2)
    return dense(hidden, 1, "discriminator.2")


def mean_loss(logit, label):
    """Return the mean cross entropy of logits [rows, 1] and labels 0 or 1."""
    loss = fluid.layers.sigmoid_cross_entropy_with_logits(x=logit, label=label)
    return fluid.layers.mean(loss)


def main():
    """Train in turns; print both losses, and the likeness of the mean digits, of each epoch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="rows, over all trainers")
    parser.add_argument("--place", type=fluid.place, default="cpu", help="cpu, or gpu: this rank's")
    options = parser.parse_args()
    pixels = fluid.dataset.digits.feature_num

    d_program, dg_program = fluid.Program(), fluid.Program()
    with fluid.program_guard(d_program):
        image = fluid.data(name="image", shape=[None, pixels], dtype="float32")
        label = fluid.data(name="label", shape=[None, 1], dtype="float32")
        d_loss = mean_loss(discriminator(image), label)
    with fluid.program_guard(dg_program):
        noise = fluid.data(name="noise", shape=[None, NOISE], dtype="float32")
        drawn = generator(noise, pixels)
        g_program = dg_program.clone(for_test=True)
        real = fluid.layers.fill_constant_batch_size_like(noise, [-1, 1], "float32", 1.0)
        dg_loss = mean_loss(discriminator(drawn), real)
    of_generator = [p.name for p in g_program.global_block().all_parameters()]
    fluid.optimizer.Adam(0.002, beta1=0.5).minimize(d_loss)
    fluid.optimizer.Adam(0.002, beta1=0.5).minimize(dg_loss, parameter_list=of_generator)

    exe = fluid.Executor(options.place)
    exe.run(fluid.default_startup_program())
    digits = np.array([image for image, _ in fluid.dataset.digits.train()()])
    random = np.random.RandomState(1)  # every trainer draws the same, and takes its rows

    def draw(rows):
        return random.uniform(-1, 1, (rows, NOISE)).astype("float32")

    for epoch in fluid.progress(range(options.epochs)):
        losses = []
        random.shuffle(digits)
        for begin in range(0, len(digits), options.batch_size):
            batch = digits[begin : begin + options.batch_size]
            (fake,) = exe.run(g_program, feed={"noise": draw(len(batch))}, fetch_list=[drawn])
            labels = np.repeat([0.0, 1.0], len(batch)).astype("float32")[:, None]
            both = {"image": np.concatenate([fake, batch]), "label": labels}
            (d_value,) = exe.run(d_program, feed=both, fetch_list=[d_loss])
            feed = {"noise": draw(len(batch))}
            (dg_value,) = exe.run(dg_program, feed=feed, fetch_list=[dg_loss])
            losses.append((d_value[0], dg_value[0]))
        d_mean, dg_mean = np.mean(losses, axis=0)
        (fake,) = exe.run(g_program, feed={"noise": draw(512)}, fetch_list=[drawn])
        alike = np.corrcoef(fake.mean(axis=0), digits.mean(axis=0))[0, 1]
        print(
            f"epoch {epoch:2d}  discriminator {d_mean:.5f}  generator {dg_mean:.5f}  "
            f"mean digits alike {alike:.4f}"
        )
    exe.close()


if __name__ == "__main__":
    main()
