"""This made the files beside it: run by PaddlePaddle Fluid 1.8.5 on Python 3.7, not by the tests.

    python make.py DIRECTORY

The tests compare what hpcdist makes of them with the outputs of Fluid in ``expected.json``.
"""

import json
import os
import sys

import numpy as np
import paddle.fluid as fluid
from paddle.fluid.proto import framework_pb2


def mlp():
    x = fluid.data(name="x", shape=[None, 4], dtype="float32")
    hidden = fluid.layers.fc(x, size=5, act="relu")
    hidden = fluid.layers.dropout(hidden, 0.5)
    return [x], fluid.layers.fc(hidden, size=3, act="softmax")


def lenet():
    image = fluid.data(name="image", shape=[None, 1, 14, 14], dtype="float32")
    first = fluid.nets.simple_img_conv_pool(image, 3, 2, 2, 2, act="relu")
    first = fluid.layers.batch_norm(first)
    second = fluid.nets.simple_img_conv_pool(first, 3, 3, 2, 2, act="relu")
    return [image], fluid.layers.fc(second, size=4, act="softmax")


def without_stacks(path):
    """Leave out which lines of which files on this machine have made the operators."""
    program = framework_pb2.ProgramDesc()
    with open(path, "rb") as file:
        program.ParseFromString(file.read())
    for op in program.blocks[0].ops:
        kept = [attr for attr in op.attrs if attr.name != "op_callstack"]
        del op.attrs[:]
        op.attrs.extend(kept)
    with open(path, "wb") as file:
        file.write(program.SerializeToString())


def main(root):
    expected = {}
    for net in (mlp, lenet):
        directory = os.path.join(root, net.__name__)
        main, startup = fluid.Program(), fluid.Program()
        startup.random_seed = main.random_seed = 5
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            inputs, out = net()
            label = fluid.data(name="label", shape=[None, 1], dtype="int64")
            loss = fluid.layers.mean(fluid.layers.cross_entropy(out, label))
            fluid.optimizer.Adam(0.1).minimize(loss)
        exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
        with fluid.scope_guard(scope):
            exe.run(startup)
            shape = [6, *inputs[0].shape[1:]]
            data = np.linspace(-1, 1, int(np.prod(shape))).reshape(shape).astype("float32")
            feed = {inputs[0].name: data, "label": np.arange(6).reshape(6, 1) % 3}
            for _ in range(3):
                exe.run(main, feed=feed)
            fluid.io.save_inference_model(
                directory, [inputs[0].name], [out], exe, main, params_filename="params"
            )
            without_stacks(os.path.join(directory, "__model__"))
            if net is mlp:
                fluid.save(main, os.path.join(directory, "trained"))
                os.remove(os.path.join(directory, "trained.pdmodel"))
            program, feeds, fetches = fluid.io.load_inference_model(
                directory, exe, params_filename="params"
            )
            (value,) = exe.run(program, feed={feeds[0]: data}, fetch_list=fetches)
        expected[net.__name__] = value.tolist()
    with open(os.path.join(root, "expected.json"), "w") as file:
        json.dump(expected, file)


main(sys.argv[1])
