import gzip
import io
from pathlib import Path

import pyarrow as pa
from page_network import *
from PIL import Image
from pyarrow import parquet

trained()
drawn_only = samples
fluid.dataset.uci_housing.train = lambda: drawn_only  # the page's must be fetched
# block
# block
samples = drawn_only
# block
with fluid.program_guard(fluid.Program(), fluid.Program()):
    x, y = fluid.data("x", [None, 13]), fluid.data("y", [None, 1])
    predicted = fluid.layers.fc(x, 1)
    loss = fluid.layers.reduce_mean(fluid.layers.square_error_cost(predicted, y))
    program = fluid.default_main_program()
    # The page's loader feeds this Program, since it is made for it.
    started = fluid.default_startup_program()
fluid.framework.switch_main_program(program)
exe.run(started)
# block
fluid.framework.switch_main_program(fluid.Program())
fluid.framework.switch_startup_program(fluid.Program())
words = fluid.layers.data("words", [1], dtype="int64", lod_level=1)
label = fluid.layers.data("label", [1], dtype="float32")
pooled = fluid.layers.sequence_pool(fluid.layers.embedding(words, [10, 4]), "sum")
loss = fluid.layers.reduce_mean(fluid.layers.square_error_cost(fluid.layers.fc(pooled, 1), label))
trained(loss)
program, fleet, files = fluid.default_main_program(), fluid.fleet, ["part-0"]
fleet.init(fluid.fleet.PaddleCloudRoleMaker())
Path("part-0").write_text("2 1 2 1 0.5\n" * 128)
Path("reader.py").write_text("import sys\nsys.stdout.write(sys.stdin.read())\n")
# block
fluid.framework.switch_main_program(fluid.Program())
fluid.framework.switch_startup_program(fluid.Program())
dense, word = fluid.data("dense", [None, 3]), fluid.data("word", [None, 1], "int64")
label = fluid.data("label", [None, 1])
given = fluid.layers.concat([dense, fluid.layers.embedding(word, [1_000_003, 2])], 1)
loss = fluid.layers.reduce_mean(fluid.layers.square_error_cost(fluid.layers.fc(given, 1), label))
trained(loss)
Path("data").mkdir()
columns = {name: np.arange(100, dtype="float32") for name in ("I1", "I2", "I3", "label")}
table = pa.table({**columns, "C1": [str(n) for n in range(100)]})
parquet.write_table(table, "data/clicks-0.parquet")
# block
line = "\t".join(["1", *("2" for _ in range(13)), *("0a1b2c3d" for _ in range(26))])
with gzip.open("day_0.gz", "wt") as day:
    day.write(f"{line}\n" * 10)
# block
Path("words.txt").write_text("a\nb\n")
drawing = io.BytesIO()
Image.new("RGB", (300, 300)).save(drawing, "PNG")
Path("photos").mkdir()
table = pa.table({"image": [drawing.getvalue()] * 4, "caption": ["a b"] * 4, "label": [1, 0, 1, 0]})
parquet.write_table(table, "photos/0.parquet")
fluid.framework.switch_main_program(fluid.Program())
image = fluid.data("image", [None, 3, 224, 224])
caption = fluid.layers.data("caption", [1], dtype="int64", lod_level=1)
label = fluid.data("label", [None, 1], "int64")
# block
