"""Trains a static model of PaddleRec for some steps; runs under Paddle 2.6.2, and under hpcdist.

    cd PaddleRec
    python train.py models/rank/dnn/config.yaml 10 values.npz losses.npz --first
    python -m hpcdist --as-paddle train.py models/rank/dnn/config.yaml 10 values.npz losses.npz

    mpirun -n 4 python -m hpcdist --as-paddle --pservers 2 train.py ... 10 values losses.npz --job

``--first`` writes the values that parameters have after the startup program; without it they are
read and set. ``--job`` does both by paddle.static.save and load, as jobs with servers need it.
Dropout is off and multinomial gives 1, 2, ..., since no two libraries draw the same. Matrices that
begin with one value everywhere get drawn ones: their gradients would be 0 but for rounding errors,
which Adam makes as large as any. ``--batch=8`` replaces the batch size, for the same reason: batch
normalization makes +1 and -1 of two rows, whatever they are. ``--sgd`` replaces Adam, where biases
are followed by batch normalization: their gradients are 0 but for rounding errors, too.
``--double`` computes in float64 what the model has in float32: rounding then is 1e9 times less.
"""

import os
import random
import re
import sys

os.environ["FLAGS_enable_pir_api"] = "0"
sys.path.insert(0, os.path.join(os.getcwd(), "tools"))
sys.path.insert(0, os.getcwd())

import numpy as np
import paddle


def nothing_drawn():
    """Let Dropout return what it is given, and multinomial the first places after 0."""
    paddle.multinomial = lambda x, num_samples=1, *args, **kwargs: paddle.arange(1, num_samples + 1)
    paddle.nn.Dropout.forward = lambda self, x: x
    paddle.nn.functional.dropout = lambda x, *args, **kwargs: x


def floats():
    """Return the element type that stands for float32."""
    return "float64" if "--double" in sys.argv else "float32"


def in_doubles():
    """Let parameters, data and casts be float64 where they would be float32."""
    paddle.set_default_dtype(floats())
    data, cast = paddle.static.data, paddle.cast
    wide = {"float32": "float64", paddle.float32: "float64"}
    paddle.static.data = lambda name, shape, dtype="float32", lod_level=0: data(
        name, shape, wide.get(dtype, dtype), lod_level
    )
    create = paddle.create_parameter
    paddle.create_parameter = lambda shape, dtype, *args, **options: create(
        shape, wide.get(dtype, dtype), *args, **options
    )
    paddle.cast = lambda x, dtype: cast(x, wide.get(dtype, dtype))


def model(config_path):
    """Return the configuration, the model, its inputs and what is fetched."""
    from utils.utils_single import load_static_model_class, load_yaml

    config = load_yaml(config_path)
    config["yaml_path"] = config_path
    config["config_abs_dir"] = os.path.dirname(os.path.abspath(config_path))
    static_model = load_static_model_class(config)
    inputs = static_model.create_feeds()
    return config, static_model, inputs, static_model.net(inputs)


def loader(config, static_model, place):
    """Return what gives batches."""
    from utils.utils_single import create_data_loader

    if config.get("runner.reader_type") == "CustomizeDataLoader":
        return static_model.create_data_loader()
    return create_data_loader(config=config, place=place)


def apart(value):
    """Return a matrix of one value with other ones drawn around it."""
    if value.ndim < 2 or not np.all(value == value.flat[0]):
        return value
    return value + np.random.RandomState(value.size).uniform(-0.01, 0.01, value.shape)


def start(program, values_path, first):
    """Write or set the parameters' values; exit if names differ."""
    scope = paddle.static.global_scope()
    tensors = {p.name: scope.find_var(p.name).get_tensor() for p in program.all_parameters()}
    if first:
        values = {name: apart(np.array(tensor)) for name, tensor in sorted(tensors.items())}
        np.savez(values_path, **values)
    with np.load(values_path) as values:
        # Paddle's recurrent layers keep a packed copy of their parameters: gru_0.w_0, ...
        packed = re.compile(r"(gru|lstm|simple_rnn)_\d+\.w_0")
        tensors = {name: t for name, t in tensors.items() if not packed.fullmatch(name)}
        kept = {name for name in values.files if not packed.fullmatch(name)}
        if kept != set(tensors):
            missing, more = kept - set(tensors), set(tensors) - kept
            raise SystemExit(f"parameters: missing {sorted(missing)}, more {sorted(more)}")
        for name, tensor in tensors.items():
            tensor.set(values[name].astype(floats()), paddle.CPUPlace())


def start_job(exe, program, prefix, first):
    """Save the parameters' values, or load them on all ranks of a job."""
    if not first:
        paddle.static.load(program, prefix, exe)
        return
    for parameter in program.all_parameters():
        tensor = paddle.static.global_scope().find_var(parameter.name).get_tensor()
        tensor.set(apart(np.array(tensor)).astype(floats()), paddle.CPUPlace())
    paddle.static.save(program, prefix)


def main():
    """Train and write what was fetched, by step."""
    config_path, steps, values_path, losses_path = sys.argv[1:5]
    first = "--first" in sys.argv
    random.seed(1)
    np.random.seed(1)
    paddle.enable_static()
    paddle.seed(12345)
    nothing_drawn()
    if "--double" in sys.argv:
        in_doubles()
    config, static_model, inputs, fetches = model(config_path)
    for word in sys.argv:
        if word.startswith("--batch="):
            config["runner.train_batch_size"] = int(word.partition("=")[2])
    place = paddle.set_device("cpu")
    if "--sgd" in sys.argv:
        paddle.optimizer.Adam = lambda learning_rate, **options: paddle.optimizer.SGD(0.001)
    static_model.create_optimizer()
    exe = paddle.static.Executor(place)
    exe.run(paddle.static.default_startup_program())
    program = paddle.static.default_main_program()
    if "--job" in sys.argv:
        start_job(exe, program, values_path, first)
    else:
        start(program, values_path, first)
    names = [variable.name for variable in inputs]
    fetched = []
    for batch in loader(config, static_model, place)():
        feed = {
            name: value.astype(floats()) if value.dtype == np.float32 else value
            for name, value in zip(names, map(np.asarray, batch))
        }
        fetched.append(exe.run(program, feed=feed, fetch_list=list(fetches.values())))
        if len(fetched) == int(steps):
            break
    columns = {
        name: np.array([np.asarray(step[k]).reshape(-1) for step in fetched])
        for k, name in enumerate(fetches)
    }
    if paddle.distributed.get_rank() == 0:
        np.savez(losses_path, **columns)


main()
