"""ResNet on images: the network of He et al. (2015), with the options of fleet's own example.

    python -m hpcdist examples/resnet.py --layers 18 --image-size 32 --steps 20
    mpirun -n 4 python -m hpcdist --pservers 2 examples/resnet.py --layers 18 --image-size 32

The images are generated (hpcdist.fluid.dataset.synthetic): classes are coarse patterns with noise.
Without options all trainers share each batch. With --fleet the script uses fleet's collective mode,
and each worker has its own batches of other images.
"""

import argparse

import numpy as np

import hpcdist as fluid
from hpcdist import fleet

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}  # residual blocks in each stage
FILTERS = (64, 128, 256, 512)  # of each stage
BOTTLENECK = 4  # a bottleneck block gives so many times the filters of its stage


def conv_bn(x, filters, size, stride=1, act=None):
    """Return a convolution that keeps rows and columns (over the stride), normalized."""
    x = fluid.layers.conv2d(
        x, filters, size, stride=stride, padding=(size - 1) // 2, bias_attr=False
    )
    return fluid.layers.batch_norm(x, act=act)


def shortcut(x, filters, stride):
    """Return x, projected if a block changes its channels or extents."""
    if x.shape[1] == filters and stride == 1:
        return x
    return conv_bn(x, filters, 1, stride)


def basic_block(x, filters, stride):
    """Return relu(x + two 3x3 convolutions of x)."""
    y = conv_bn(x, filters, 3, stride, act="relu")
    y = conv_bn(y, filters, 3)
    return fluid.layers.elementwise_add(shortcut(x, filters, stride), y, act="relu")


def bottleneck_block(x, filters, stride):
    """Return relu(x + a 3x3 convolution of x between two 1x1)."""
    y = conv_bn(x, filters, 1, act="relu")
    y = conv_bn(y, filters, 3, stride, act="relu")
    y = conv_bn(y, filters * BOTTLENECK, 1)
    return fluid.layers.elementwise_add(shortcut(x, filters * BOTTLENECK, stride), y, act="relu")


def resnet(image, classes, layers):
    """Return the scores of each class."""
    block = bottleneck_block if layers >= 50 else basic_block
    x = conv_bn(image, 64, 7, stride=2, act="relu")
    x = fluid.layers.pool2d(x, pool_size=3, pool_stride=2, pool_padding=1, pool_type="max")
    for stage, (filters, blocks) in enumerate(zip(FILTERS, BLOCKS[layers])):
        for i in range(blocks):
            x = block(x, filters, stride=2 if i == 0 and stage > 0 else 1)
    x = fluid.layers.pool2d(x, pool_type="avg", global_pooling=True)
    limit = 1.0 / x.shape[1] ** 0.5
    start = fluid.initializer.Uniform(-limit, limit)
    return fluid.layers.fc(x, classes, param_attr=fluid.ParamAttr(initializer=start))


def options():
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--layers", type=int, choices=sorted(BLOCKS), default=50)
    add("--image-size", type=int, default=224)
    add("--classes", type=int, default=10)
    add("--batch-size", type=int, default=32, help="over all trainers; with --fleet, of each")
    add("--epochs", type=int, default=10)
    add("--steps", type=int, default=50, help="batches of an epoch")
    add("--learning-rate", type=float, default=0.1)
    add("--place", type=fluid.place, default="cpu", help="cpu, or gpu: this rank's")
    add("--fleet", action="store_true", help="train through fleet's collective mode")
    add("--use-hierarchical-allreduce", action="store_true", help="with --fleet: by hosts")
    add("--hierarchical-allreduce-inter-nranks", type=int, help="ranks that sum before the others")
    return parser.parse_args()


def distributed(optimizer, given):
    """Return the optimizer that sums gradients over fleet's workers."""
    strategy = fleet.DistributedStrategy()
    if given.use_hierarchical_allreduce:
        strategy.use_hierarchical_allreduce = True
    if given.hierarchical_allreduce_inter_nranks is not None:
        strategy.hierarchical_allreduce_inter_nranks = given.hierarchical_allreduce_inter_nranks
    return fleet.distributed_optimizer(optimizer, strategy)


def main():
    """Train, and print loss and accuracies of every fifth batch."""
    given = options()
    if given.fleet:
        fleet.init(is_collective=True)
    shape = [None, 3, given.image_size, given.image_size]
    image = fluid.data(name="x", shape=shape, dtype="float32")
    label = fluid.data(name="y", shape=[None, 1], dtype="int64")
    scores = resnet(image, given.classes, given.layers)
    each, guess = fluid.layers.softmax_with_cross_entropy(scores, label, return_softmax=True)
    loss = fluid.layers.mean(each)
    top = [fluid.layers.accuracy(guess, label, k=min(k, given.classes)) for k in (1, 5)]
    optimizer = fluid.optimizer.Momentum(
        learning_rate=given.learning_rate,
        momentum=0.9,
        regularization=fluid.regularizer.L2Decay(1e-4),
    )
    if given.fleet:
        optimizer = distributed(optimizer, given)
    optimizer.minimize(loss)

    exe = fluid.Executor(given.place)
    exe.run(fluid.default_startup_program())
    feeder = fluid.DataFeeder([image, label], fluid.CPUPlace())
    count = given.steps * given.batch_size
    begin = fleet.worker_index() * count if given.fleet else 0
    samples = fluid.dataset.synthetic.images(count, given.classes, given.image_size, begin=begin)
    batches = fluid.batch(samples, given.batch_size)
    for epoch in range(given.epochs):
        for batch, rows in enumerate(batches()):
            fetched = exe.run(feed=feeder.feed(rows), fetch_list=[loss, *top])
            if batch % 5 == 0:
                value, acc1, acc5 = (np.ravel(v)[0] for v in fetched)
                print(
                    f"[Epoch {epoch}, batch {batch}] loss: {value:.5f}, acc1: {acc1:.5f}, "
                    f"acc5: {acc5:.5f}",
                    flush=True,
                )
    exe.close()


if __name__ == "__main__":
    main()
