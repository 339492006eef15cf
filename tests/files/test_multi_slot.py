"""Datasets: multi-slot text and pipe commands."""

from __future__ import annotations

import gzip
import os
import shlex
import subprocess
import sys

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import DataError, DataNotImplementedError, MissingNameError
from hpcdist.fluid.multi_slot.samples import SampleSlot, batches, concatenated
from hpcdist.fluid.multi_slot.text import samples_of
from hpcdist.multi_slot import (
    pipe,
)
from tests.support.multi_slot_files import dataset, slot_variables, write

SLOTS = [
    SampleSlot("words", "int64", None),
    SampleSlot("z", "float32", (2,)),
    SampleSlot("label", "int64", (1,)),
]
LINES = [
    "2 5 -6 2 0.5 -1e-3 1 7\n",
    "1 18446744073709551615 2 .25 +3 1 0\r\n",
    "1 0000000000000000000009 2 1 2 1 1\n",
]


pytestmark = pytest.mark.usefixtures("fresh")


def parsed(*chunks):
    return list(samples_of([chunk.encode() for chunk in chunks], SLOTS, "part-0"))


@pytest.mark.parametrize("command", ["cat", "cat | cat"])
@pytest.mark.parametrize("name", ["part", "part.gz"])
def test_a_line_without_an_end_is_bounded(tmp_path, monkeypatch, command, name):
    monkeypatch.setattr(pipe, "MAX_LINE_BYTES", 3 * pipe.CHUNK_BYTES)
    path = tmp_path / name
    line = b"1 " * (2 * pipe.CHUNK_BYTES)
    path.write_bytes(gzip.compress(line, 1) if name.endswith(".gz") else line)
    with pytest.raises(DataError, match=rf"{name}: a line has more than 3 MiB: is it a text file"):
        list(pipe.lines_of(str(path), command))
    line = b"1 " * (pipe.CHUNK_BYTES + 7) + b"\n2\n3"
    path.write_bytes(gzip.compress(line, 1) if name.endswith(".gz") else line)
    assert b"".join(pipe.lines_of(str(path), command)) == line


# text


def test_python_is_that_of_the_job(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # no environment is activated
    (path := tmp_path / "lines").write_text("1 2\n")
    script = "import sys, numpy; sys.stdout.write(sys.executable)"
    (found,) = pipe.lines_of(str(path), f"python -c {shlex.quote(script)}")
    assert os.path.samefile(found.decode(), sys.executable)


def test_lines_become_columns_of_values():
    (samples,) = parsed("".join(LINES))
    words, z, label = samples.columns
    assert words.values.tolist() == [5, -6, -1, 9] and words.offsets.tolist() == [0, 2, 3, 4]
    assert z.values.tolist() == np.float32([0.5, -0.001, 0.25, 3, 1, 2]).tolist()
    assert label.values.tolist() == [7, 0, 1]


def test_numbers_are_those_that_python_reads():
    rng = np.random.default_rng(3)
    values = (rng.normal(size=4000) * 10.0 ** rng.integers(-30, 30, 4000)).astype("float32")
    words = [repr(float(v)) for v in values] + [f"{v:.9g}" for v in values]
    words += ["123456789012345678901234", "0." + "0" * 40 + "1", "1E5", "-0.0", "16777217"]
    slots = [SampleSlot("f", "float32", (1,))]
    text = "".join(f"1 {word}\n" for word in words).encode()
    (samples,) = samples_of([text], slots, "f")
    np.testing.assert_array_equal(samples.columns[0].values, np.array(words, "float32"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2 5", "slot 0 (words): the line ends before it is complete"),
        ("", "slot 0 (words): the line ends before it is complete"),
        ("x 1", "slot 0 (words): expected the number of its values, got 'x'"),
        ("0 2 1 1 1 1", "slot 0 (words): it has 0 values: pad it, in the data generator"),
        ("1 1 3 1 1 1 1 1", "slot 1 (z): expected 2 values, as the variable's shape says, got 3"),
        ("1 1.5 2 1 1 1 1", "slot 0 (words): expected an integer of 64 bits, got '1.5'"),
        ("1 18446744073709551616 2 1 1 1 1", "integer of 64 bits, got '18446744073709551616'"),
        ("1 1 2 1 nan 1 1", "slot 1 (z): expected a finite number, got 'nan'"),
        ("1 1 2 1 1e39 1 1", "slot 1 (z): expected a finite number, got '1e39'"),
        ("1 1 2 1 . 1 1", "slot 1 (z): expected a finite number, got '.'"),
        ("1 1 2 1 1 1 1 9 9", "expected the end of the line after 3 slots, got '9'"),
    ],
)
def test_a_bad_line_is_named(line, message):
    with pytest.raises(DataError) as caught:
        parsed(LINES[0], LINES[1] + line + "\n" + LINES[2])
    assert str(caught.value).startswith("part-0, line 3: ") and message in str(caught.value)


def test_batches_run_across_chunks_and_files():
    rng = np.random.default_rng(1)
    lines = [f"1 {k} 2 {k} {k} 1 {k}\n" for k in range(20)]
    cuts = sorted(rng.integers(0, 21, 5))
    chunks = ["".join(lines[a:b]) for a, b in zip([0, *cuts], [*cuts, 20])]
    whole = concatenated(parsed("".join(lines)))
    for size in (1, 3, 20, 50):
        fed = list(batches(iter(parsed(*chunks)), size))
        assert [len(batch["label"]) for batch in fed[:-1]] == [size] * (len(fed) - 1)
        labels = np.concatenate([np.asarray(batch["label"]) for batch in fed]).ravel()
        assert labels.tolist() == whole.columns[2].values.tolist() == list(range(20))


def labels_of(made):
    return [np.asarray(batch["label"]).ravel().tolist() for batch in made.batches()]


@pytest.fixture
def files(tmp_path):
    return [write(tmp_path / "a", range(3)), write(tmp_path / "b", range(10, 14))]


@pytest.mark.parametrize("kind", ["QueueDataset", "InMemoryDataset"])
def test_every_pass_gives_the_batches_of_all_files_in_their_order(kind, files):
    made = dataset(kind, files)
    if kind == "InMemoryDataset":
        made.load_into_memory()
    for _ in range(2):
        assert labels_of(made) == [[0, 1], [2, 10], [11, 12], [13]]


def test_batches_have_32_samples_where_none_is_said(tmp_path):
    made = fluid.DatasetFactory().create_dataset()
    made.set_use_var(slot_variables())
    made.set_filelist([str(write(tmp_path / "a", range(50)))])
    assert [len(batch["label"]) for batch in made.batches()] == [32, 18]  # as in Fluid


def test_a_batch_feeds_dense_values_and_sequences(tmp_path):
    (tmp_path / "a").write_text("".join(LINES))
    batch = next(dataset("QueueDataset", [tmp_path / "a"]).batches())
    assert batch["words"].lod() == [[0, 2, 3]] and batch["words"].shape() == [3, 1]
    assert batch["z"].shape == (2, 2) and batch["z"].dtype == "float32"
    assert batch["label"].tolist() == [[7], [0]]


def test_files_go_through_the_pipe_command_unpacked(tmp_path, files):
    packed = tmp_path / "c.gz"
    packed.write_bytes(gzip.compress(files[0].read_bytes()))
    assert labels_of(dataset("QueueDataset", [packed], size=9)) == [[0, 1, 2]]
    sed = "sed 's/1 2$/1 22/' | grep -v '1 1$'"
    assert labels_of(dataset("QueueDataset", [packed, files[1]], sed, 9)) == [
        [0, 22, 10, 11, 12, 13]
    ]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("false | cat", "a: the pipe command 'false | cat' ended with exit code 1"),
        ("no_such_command", "a: the pipe command 'no_such_command' ended with exit code 127"),
        ("echo 1 x", "a (through 'echo 1 x'), line 1: slot 0 (words)"),
        ("printf '1 1 2'; exit 3", "2'; exit 3\" ended with exit code 3; what"),  # not: a bad line
    ],
)
def test_a_pipe_command_that_fails_is_named(files, command, message):
    with pytest.raises(DataError) as caught:
        labels_of(dataset("QueueDataset", files, command))
    assert message in str(caught.value)


@pytest.mark.parametrize("command", ["cat", "cat -"])
def test_a_file_that_is_not_there_is_named(tmp_path, files, command):
    with pytest.raises(DataError, match="gone: cannot be read"):
        labels_of(dataset("QueueDataset", [*files, tmp_path / "gone"], command))


@pytest.mark.parametrize("kind", ["QueueDataset", "InMemoryDataset"])
@pytest.mark.parametrize(
    ("name", "command", "message"),
    [
        ("a", "head -n 1; exec sleep 600", "a: the pipe command .* wrote nothing for 0.08 s"),
        ("fifo", "cat", "fifo: it sent nothing for 0.08 s"),
        ("fifo", "cat -", "fifo: it sent nothing for 0.08 s"),
    ],
)
def test_what_hangs_is_named(files, monkeypatch, kind, name, command, message):
    monkeypatch.setenv("FLAGS_rpc_deadline", "100")
    os.mkfifo("fifo")
    made = dataset(kind, [files[0].parent / name], command)
    with pytest.raises(DataError, match=message):
        made.load_into_memory() if kind == "InMemoryDataset" else list(made.batches())


@pytest.mark.parametrize("command", ["cat", "cat -"])
@pytest.mark.parametrize(("name", "packing"), [("fifo", ""), ("fifo.gz", "| gzip")])
def test_a_fifo_is_read_as_its_writer_writes(tmp_path, command, name, packing):
    os.mkfifo(name)
    script = f"(echo 1 1 2 1 1 1 5; echo 1 1 2 1 1 1 6) {packing} > {name}"
    with subprocess.Popen(["bash", "-c", script]):
        assert labels_of(dataset("QueueDataset", [tmp_path / name], command)) == [[5, 6]]


@pytest.mark.parametrize("command", ["cat", "cat -"])
def test_packed_files_that_are_cut_or_packed_twice_are_named(tmp_path, files, command):
    packed = gzip.compress(files[0].read_bytes())
    for data, through, message in [
        (b"", command, "c.gz: not a gzip file: it is empty"),
        (packed[:-10], command, "c.gz: (cannot be read: Compressed|the pipe command .* exit code)"),
        (packed, "zcat", r"'zcat' ended with exit code 1 \(.gz files are unpacked before it reads"),
    ]:
        (tmp_path / "c.gz").write_bytes(data)
        with pytest.raises(DataError, match=message):
            labels_of(dataset("QueueDataset", [tmp_path / "c.gz"], through))


@pytest.mark.parametrize("command", ["cat", "cat -"])
def test_a_file_that_becomes_shorter_is_named(tmp_path, monkeypatch, command):
    monkeypatch.setattr(pipe, "CHUNK_BYTES", 100)
    path = write(tmp_path / "a", range(10_000))  # more than a pipe and 8 batches hold
    passed = dataset("QueueDataset", [path], command).batches()
    next(passed)
    os.truncate(path, 30)
    with pytest.raises(DataError, match="a: became shorter while it was read"):
        list(passed)


def test_a_pipe_command_need_not_read_all(tmp_path):
    path = write(tmp_path / "a", [5] * 20_000)  # more than a pipe holds
    assert labels_of(dataset("QueueDataset", [path], "cat | head -n 2")) == [[5, 5]]


def test_pipe_commands_hash_texts_alike(files, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    hashed = f"{shlex.quote(sys.executable)} -Sc 'print(1, abs(hash(\"Bonn\")), 2, 0, 0, 1, 1)'"
    words = [b["words"] for b in dataset("QueueDataset", files, hashed, size=1).batches()]
    assert len({int(np.ravel(w)[0]) for w in words}) == 1 < len(words)


def test_a_pass_that_is_left_ends_its_command(tmp_path, files):
    made = dataset("QueueDataset", files, "yes '1 1 2 1 1 1 1'")
    passed = made.batches()
    next(passed)
    passed.close()  # would wait for ever if the command went on


def test_what_a_dataset_refuses(tmp_path, files):
    queue = fluid.dataset.QueueDataset()
    for call, message in [
        (lambda: list(queue.batches()), "call set_filelist first"),
        (lambda: fluid.DatasetFactory().create_dataset("Foo"), "expected one of"),
        (lambda: queue.set_batch_size(0), "at least 1"),
        (lambda: queue.set_filelist("a"), "expected a list of files"),
        (lambda: queue.set_batch_size("a"), "at least 1, got a"),
        (lambda: queue.set_use_var(fluid.data("v", [None, 1])), "expected a list of variables"),
        (lambda: queue.set_use_var(["v"]), "expected a list of variables"),
        (lambda: queue.set_pipe_command(5), "expected a string, got 5"),
        (lambda: queue.set_use_var([fluid.data("i", [None, 1], "int32")]), "int64 or float32"),
        (lambda: queue.set_use_var([fluid.data("o", [None, None])]), "must have the shape"),
        (lambda: queue.set_use_var([fluid.data("p", [None, 2], lod_level=1)]), "one value a row"),
        (lambda: fluid.InMemoryDataset().wait_preload_done(), "call preload_into_memory first"),
        (lambda: fluid.Executor().train_from_dataset(dataset=None), "expected one of Dataset"),
    ]:
        with pytest.raises(DataError, match=message):
            call()
    for refused in (queue.local_shuffle, queue.global_shuffle, lambda: queue.slots_shuffle(["a"])):
        with pytest.raises(DataNotImplementedError, match="use InMemoryDataset"):
            refused()
    memory = fluid.DatasetFactory().create_dataset("InMemoryDataset")
    for name in ("parse_logkey", "enable_pv_merge"):
        getattr(memory, f"set_{name}")(False)
        with pytest.raises(DataNotImplementedError, match=f"set_{name}: .*in the pipe command"):
            getattr(memory, f"set_{name}")(True)
    memory.set_feed_type("MultiSlotInMemoryDataFeed")
    with pytest.raises(DataNotImplementedError, match="write multi-slot text"):
        memory.set_feed_type("PaddleBoxDataFeed")
    for name in ("set_rank_offset", "get_pv_data_size", "generate_local_tables_unlock"):
        with pytest.raises(MissingNameError, match=rf"Dataset.*\.{name} of Fluid"):
            getattr(memory, name)
    queue.set_hdfs_config("hdfs://x", "u,p")  # as in Fluid it changes nothing for other files
    for name in ("hdfs:/user/part-0", "afs:/user/part-0"):
        with pytest.raises(DataNotImplementedError, match=f"{name}: mount the file system"):
            queue.set_filelist(["part-1", name])
    with pytest.raises(DataError, match="set_merge_by_lineid: expected at least 0, got -1"):
        memory.set_merge_by_lineid(-1)
    loaded = dataset("InMemoryDataset", files)
    loaded.load_into_memory()
    with pytest.raises(DataError, match="call it before samples are loaded"):
        loaded.set_merge_by_lineid()


def test_the_description_is_fluids():
    queue = fluid.dataset.QueueDataset()
    queue.set_use_var(slot_variables()[:2])
    queue.set_pipe_command("awk '{print \"x\"}' \\ é")
    assert queue.desc().endswith(r'''pipe_command: "awk \'{print \"x\"}\' \\ \303\251"''' + "\n")
    assert "batch_size" not in queue.desc()
    queue.set_pipe_command("cat")
    queue.set_batch_size(3)
    assert queue.desc() == (
        'name: "MultiSlotDataFeed"\nbatch_size: 3\nmulti_slot_desc {\n  slots {\n'
        '    name: "words"\n    type: "uint64"\n    is_used: true\n  }\n  slots {\n'
        '    name: "z"\n    type: "float"\n    is_dense: true\n    is_used: true\n'
        '    shape: -1\n    shape: 2\n  }\n}\npipe_command: "cat"\n'
    )
