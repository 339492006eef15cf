"""Files of multi-slot text, and Datasets that read them."""

from __future__ import annotations

import hpcdist as fluid

# datasets


def slot_variables():
    words = fluid.data("words", [None, 1], "int64", lod_level=1)
    return [words, fluid.data("z", [None, 2]), fluid.data("label", [None, 1], "int64")]


def dataset(kind, files, command="cat", size=2, variables=None):
    made = fluid.DatasetFactory().create_dataset(kind)
    made.set_use_var(variables or slot_variables())
    made.set_batch_size(size)
    made.set_filelist([str(file) for file in files])
    made.set_pipe_command(command)
    made.set_thread(2)
    return made


def write(path, labels, words="1 1"):
    path.write_text("".join(f"{words} 2 0.5 {k} 1 {k}\n" for k in labels))
    return path
