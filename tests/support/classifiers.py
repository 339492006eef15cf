"""A small classifier, and what its Programs are made of."""

import hpcdist as fluid


def classifier(rate=0.1, width=4):
    """Build x(3) -> fc relu -> dropout -> fc softmax -> loss, minimized by SGD."""
    x = fluid.layers.data("x", [3])
    y = fluid.layers.data("y", [1], dtype="int64")
    hidden = fluid.layers.dropout(fluid.layers.fc(x, width, act="relu"), 0.5)
    guess = fluid.layers.fc(hidden, 2, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(guess, y))
    fluid.optimizer.SGD(rate() if callable(rate) else rate).minimize(loss)
    return loss


def types(program, block=0):
    return [op.type for op in program.block(block).ops]
