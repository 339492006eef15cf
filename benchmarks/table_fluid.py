"""The same look-ups and updates in Fluid 1.8.5, embedding(is_sparse=True). Python 3.7."""

import argparse
import json
import time

import numpy as np
import paddle.fluid as fluid


def main():
    """Print one JSON line: seconds of look-up and of update, for each optimizer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("rows", "ids", "dim", "rounds"):
        parser.add_argument("--" + name, type=int, required=True)
    options = parser.parse_args()
    generator = np.random.RandomState(0)
    found = {}
    for name, make in (
        ("adagrad", lambda: fluid.optimizer.Adagrad(0.01)),
        ("adam", lambda: fluid.optimizer.Adam(0.01, lazy_mode=True)),
    ):
        main_program, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main_program, startup), fluid.unique_name.guard():
            ids = fluid.data("ids", [None, 1], "int64")
            rows = fluid.embedding(ids, [options.rows, options.dim], is_sparse=True)
            loss = fluid.layers.reduce_sum(rows)
            look_up = main_program.clone(for_test=True)
            make().minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        pull, push = [], []
        with fluid.scope_guard(fluid.Scope()):
            exe.run(startup)
            for _ in range(options.rounds + 1):
                feed = {"ids": generator.permutation(options.rows)[: options.ids, None]}
                begin = time.time()
                exe.run(look_up, feed=feed, fetch_list=[loss.name])
                pulled = time.time()
                exe.run(main_program, feed=feed, fetch_list=[loss.name])
                pull.append(pulled - begin)
                # The step looks up again before it updates.
                push.append(max(1e-9, time.time() - pulled - pull[-1]))
        found[name] = {"pull_s": pull[1:], "push_s": push[1:]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
