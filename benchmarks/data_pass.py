"""A pass over multi-slot text: Fluid 1.8.5's QueueDataset, or hpcdist's. For Python 3.7."""

import argparse
import json
import time

import numpy as np
import paddle.fluid as fluid

WORDS, NUMBERS = 26, 13  # of a line, as Criteo has them


def main():
    """Print one JSON line: batches per second, and sums of what was read."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    words = [fluid.data("w" + str(k), [None, 1], "int64", lod_level=1) for k in range(WORDS)]
    numbers = fluid.data("numbers", [None, NUMBERS], "float32")
    click = fluid.data("click", [None, 1], "int64")
    dataset = fluid.DatasetFactory().create_dataset("QueueDataset")
    dataset.set_use_var([*words, numbers, click])
    dataset.set_batch_size(options.batch)
    dataset.set_thread(1)
    dataset.set_pipe_command("cat")
    dataset.set_filelist(options.files)
    loader = fluid.io.DataLoader.from_dataset(dataset, fluid.cpu_places(1), drop_last=False)
    for _ in loader():  # the files come into memory, and kernels are compiled
        pass
    begin, steps, sums = time.time(), 0, np.zeros(3)
    for (batch,) in loader():
        steps += 1
        parts = [np.array(batch[name]) for name in ("w0", "numbers", "click")]
        sums += [part.sum(dtype="float64") for part in parts]
    print(json.dumps({"steps_per_s": steps / (time.time() - begin), "losses": sums.tolist()}))


if __name__ == "__main__":
    main()
