"""Datasets: multi-slot text, pipe commands, samples in memory, and training from them."""

from __future__ import annotations

import gzip
import io
import os
import shlex
import subprocess
import sys

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import DataError, DataNotImplementedError, FeedError, MissingNameError
from hpcdist.multi_slot import (
    MultiSlotDataGenerator,
    MultiSlotStringDataGenerator,
    exchange,
    pipe,
)
from hpcdist.multi_slot.exchange import shuffled_among
from hpcdist.multi_slot.samples import Samples, SampleSlot, batches, concatenated, shuffled
from hpcdist.multi_slot.text import samples_of
from tests.support_job import alone
from tests.threads import run_in_world

SLOTS = [
    SampleSlot("words", "int64", None),
    SampleSlot("z", "float32", (2,)),
    SampleSlot("label", "int64", (1,)),
]
LINES = ["2 5 -6 2 0.5 -1e-3 1 7\n", "1 18446744073709551615 2 .25 +3 1 0\r\n", "1 9 2 1 2 1 1\n"]


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with fluid.unique_name.guard(), alone(), fluid.program_guard(fluid.Program(), fluid.Program()):
        yield


def parsed(*chunks):
    return list(samples_of([chunk.encode() for chunk in chunks], SLOTS, "part-0"))


# text


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
        ("1 1.5 2 1 1 1 1", "slot 0 (words): expected a whole number of 64 bits, got '1.5'"),
        ("1 18446744073709551616 2 1 1 1 1", "whole number of 64 bits, got '18446744073709551616'"),
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


# datasets


def data():
    words = fluid.data("words", [None, 1], "int64", lod_level=1)
    return [words, fluid.data("z", [None, 2]), fluid.data("label", [None, 1], "int64")]


def dataset(kind, files, command="cat", size=2, variables=None):
    made = fluid.DatasetFactory().create_dataset(kind)
    made.set_use_var(variables or data())
    made.set_batch_size(size)
    made.set_filelist([str(file) for file in files])
    made.set_pipe_command(command)
    made.set_thread(2)
    return made


def write(path, labels, words="1 1"):
    path.write_text("".join(f"{words} 2 0.5 {k} 1 {k}\n" for k in labels))
    return path


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
    made.set_use_var(data())
    made.set_filelist([str(write(tmp_path / "a", range(50)))])
    assert [len(batch["label"]) for batch in made.batches()] == [32, 18]  # as in Fluid


def test_a_batch_feeds_dense_values_and_sequences(tmp_path):
    (tmp_path / "a").write_text("".join(LINES))
    batch = next(dataset("QueueDataset", [tmp_path / "a"]).batches())
    assert batch["words"].lod() == [[0, 2, 3]] and batch["words"].shape() == [3, 1]
    assert batch["z"].shape() == [2, 2] and np.asarray(batch["z"]).dtype == "float32"
    assert np.asarray(batch["label"]).tolist() == [[7], [0]]


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
        ("fifo", "cat", "fifo: nothing came from it for 0.08 s"),
        ("fifo", "cat -", "fifo: nothing came from it for 0.08 s"),
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


def test_memory_leaves_out_zeros_of_ragged_slots_as_fluid_does(tmp_path):
    (tmp_path / "a").write_text("3 0 6 0 2 0 .25 1 1\n2 0 0 2 0 0 1 0\n")
    queue, memory = (dataset(k, [tmp_path / "a"]) for k in ("QueueDataset", "InMemoryDataset"))
    memory.load_into_memory()
    for made, words in [(queue, [0, 6, 0, 0, 0]), (memory, [6, 0])]:
        (batch,) = made.batches()
        assert np.asarray(batch["words"]).ravel().tolist() == words
        assert np.asarray(batch["z"]).tolist() == [[0, 0.25], [0, 0]]


@pytest.mark.parametrize("kind", ["QueueDataset", "InMemoryDataset"])
def test_a_worker_may_have_no_file(kind, caplog):
    made = dataset(kind, [])
    if kind == "InMemoryDataset":
        made.load_into_memory()
        made.global_shuffle()
    assert list(made.batches()) == [] and "there is no file for this process" in caplog.text


def test_preloading_sizes_and_release(files):
    made = dataset("InMemoryDataset", files)
    assert made.get_memory_data_size() == 0
    made.preload_into_memory(thread_num=1)
    made.wait_preload_done()
    assert made.get_memory_data_size() == made.get_shuffle_data_size() == 7
    made.release_memory()
    assert made.get_memory_data_size() == 0
    with pytest.raises(DataError, match="nothing is loaded"):
        made.local_shuffle()


@pytest.mark.parametrize("shuffle", ["local_shuffle", "global_shuffle"])
def test_shuffles_keep_samples_whole_and_follow_from_the_seed(tmp_path, shuffle, monkeypatch):
    path = write(tmp_path / "a", range(50))

    def shuffled():
        made = dataset("InMemoryDataset", [path], size=50)
        made.load_into_memory()
        passes = []
        for _ in range(2):
            getattr(made, shuffle)()
            (batch,) = made.batches()
            label, z = np.asarray(batch["label"]), np.asarray(batch["z"])
            assert label.ravel().tolist() == z[:, 1].tolist()
            passes.append(label.ravel().tolist())
        return passes

    first = shuffled()
    assert first[0] != first[1] and sorted(first[0]) == sorted(first[1]) == list(range(50))
    assert shuffled() == first
    monkeypatch.setenv("HPCDIST_SEED", "7")
    assert shuffled() != first


def test_a_slot_is_shuffled_alone_to_see_what_it_tells(tmp_path):
    made = dataset("InMemoryDataset", [write(tmp_path / "a", range(50))], size=50)
    made.load_into_memory()
    with pytest.raises(DataError, match="call set_fea_eval"):
        made.slots_shuffle(["z"])
    made.set_fea_eval(1000, True)
    with pytest.raises(DataError, match=r"expected a list of slots, of \['label', 'words', 'z'\]"):
        made.slots_shuffle(["y"])
    made.slots_shuffle(["z"])
    (batch,) = made.batches()
    assert np.ravel(batch["label"]).tolist() == list(range(50))
    others = np.asarray(batch["z"])[:, 1].tolist()
    assert others != list(range(50)) and sorted(others) == list(range(50))


@pytest.mark.parametrize("round_bytes", [1, 200, exchange.ROUND_BYTES])
@pytest.mark.parametrize("sizes", [[7, 0, 12], [40], [1, 1, 1, 1], [0, 0], [3, 50]])
def test_a_global_shuffle_is_one_permutation_on_any_number_of_trainers(
    sizes, round_bytes, monkeypatch
):
    monkeypatch.setattr(exchange, "ROUND_BYTES", round_bytes)
    rng = np.random.default_rng(5)
    total = sum(sizes)
    lines = []
    for k in range(total):
        words = rng.integers(1, 9, rng.integers(1, 5))
        lines.append(f"{len(words)} {' '.join(map(str, words))} 2 {k} 0.5 1 {k}\n")
    begins = np.cumsum([0, *sizes])
    parts = [None] * len(sizes)

    def shuffle(transport):
        rank = transport.rank
        (own,) = parsed("".join(lines[begins[rank] : begins[rank + 1]]))
        parts[rank] = shuffled_among(transport, own, np.random.default_rng(11), 60)

    run_in_world(len(sizes), shuffle)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    (whole,) = parsed("".join(lines))
    labels = whole.columns[2].values
    order = np.random.default_rng(11).permutation(total)
    expected = shuffled(whole, np.random.default_rng(11))
    assert expected.columns[2].values.tolist() == labels[order].tolist()
    for got, wanted in zip(concatenated(parts).columns, expected.columns):
        np.testing.assert_array_equal(got.values, wanted.values)
        np.testing.assert_array_equal(got.offsets, wanted.offsets)


def test_trainers_with_different_slots_are_told_so():
    def shuffle(transport):
        (own,) = parsed("1 5 2 1 0.5 1 3\n")
        slots = own.slots[:2] + own.slots[2:] * (1 + transport.rank)
        columns = own.columns[:2] + own.columns[2:] * (1 + transport.rank)
        with pytest.raises(DataError, match="have different slots"):
            shuffled_among(transport, Samples(slots, columns), np.random.default_rng(1), 60)

    run_in_world(2, shuffle)


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
    queue.set_use_var(data()[:2])
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


def test_a_loader_gives_the_batches_of_a_dataset(files):
    made = dataset("QueueDataset", files)
    loader = fluid.io.DataLoader.from_dataset(made, fluid.cpu_places(1))
    steps = [[np.asarray(p["label"]).ravel().tolist() for p in step] for step in loader()]
    assert steps == [[[0, 1]], [[2, 10]], [[11, 12]]]  # the last batch is short
    loader = fluid.io.DataLoader.from_dataset(made, fluid.cpu_places(1), drop_last=False)
    assert [len(part["label"]) for step in loader for part in step] == [2, 2, 2, 1]
    loader = fluid.io.DataLoader.from_dataset(made, fluid.cpu_places(3), drop_last=True)
    assert [len(step) for step in loader] == [3]


# training


def net():
    words, z, label = variables = data()
    rows = layers.embedding(words, [100, 4], param_attr="table")
    both = layers.concat([layers.sequence_pool(rows, "sum"), z], axis=1)
    error = layers.square_error_cost(layers.fc(both, 1), layers.cast(label, "float32"))
    loss = layers.mean(error)
    fluid.optimizer.SGD(0.01).minimize(loss)
    return variables, loss


def table():
    return np.array(fluid.global_scope().find_var("table").get_tensor())


def test_training_from_a_dataset_is_training_from_its_batches(files, capsys):
    variables, loss = net()
    made = dataset("QueueDataset", files, variables=variables)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    losses = [exe.run(feed=batch, fetch_list=[loss])[0] for batch in made.batches()]
    expected = table()
    exe.run(fluid.default_startup_program())
    exe.train_from_dataset(
        dataset=made, fetch_list=[loss], fetch_info=["the loss"], print_period=3, debug=True
    )
    np.testing.assert_array_equal(table(), expected)
    first, last = capsys.readouterr().out.splitlines()
    assert first == f"batch 3: the loss: {losses[2]}" and last.startswith("4 batches in ")


def test_inference_from_a_dataset_updates_nothing(files, capsys):
    variables, loss = net()
    made = dataset("InMemoryDataset", files, variables=variables)
    made.load_into_memory()
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    before = table()
    program = fluid.CompiledProgram(fluid.default_main_program())
    exe.infer_from_dataset(program, made, fetch_list=[loss], print_period=1)
    np.testing.assert_array_equal(table(), before)
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_a_fetch_handler_is_told_values(files):
    variables, loss = net()
    made = dataset("QueueDataset", files, variables=variables)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    losses = [exe.run(feed=batch, fetch_list=[loss])[0] for batch in made.batches()]
    exe.run(fluid.default_startup_program())
    told = []

    class Told(fluid.executor.FetchHandler):
        def handler(self, res_dict):
            told.append(res_dict["the loss"])

    exe.train_from_dataset(dataset=made, fetch_handler=Told({"the loss": loss}, period_secs=0))
    assert told == losses
    exe.train_from_dataset(dataset=made, fetch_handler=Told({"the loss": loss}))
    assert told == losses
    for wrong in (lambda: Told(), lambda: exe.train_from_dataset(dataset=made, fetch_handler=5)):
        with pytest.raises(FeedError, match="var_dict must be|expected a FetchHandler"):
            wrong()


def test_training_from_nothing_is_told(files, caplog):
    variables, _ = net()
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    exe.train_from_dataset(dataset=dataset("QueueDataset", files, "true", variables=variables))
    assert "the dataset gave no batch" in caplog.text


def test_a_failing_file_ends_training(files):
    variables, loss = net()
    files[1].write_text("1 1 2 1 1 1 1\nbroken\n")
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    with pytest.raises(DataError, match="b, line 2: slot 0"):
        exe.train_from_dataset(dataset=dataset("QueueDataset", files, variables=variables))
    made = dataset("QueueDataset", files[:1], variables=variables)
    with pytest.raises(FeedError, match="fetch_info: expected 1 strings"):
        exe.train_from_dataset(dataset=made, fetch_list=[loss], fetch_info=["a", "b"])


# data generators


class Words(MultiSlotDataGenerator):
    def generate_sample(self, line):
        def samples():
            numbers = [int(word) for word in line.split()] if line else [1, 2]
            yield None
            yield [("words", numbers[1:]), ("label", numbers[:1])]

        return samples


def written(generator, stdin, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
    generator.run_from_stdin()
    return capsys.readouterr().out


def test_a_data_generator_writes_multi_slot_text(monkeypatch, capsys):
    assert written(Words(), "1 5 6 7\n0 3\n", monkeypatch, capsys) == "3 5 6 7 1 1\n1 3 1 0\n"
    Words().run_from_memory()
    assert capsys.readouterr().out == "1 2 1 1\n"


def test_a_sample_may_be_what_zip_gives_of_numpys_numbers(monkeypatch, capsys):
    class Zipped(MultiSlotDataGenerator):
        def generate_sample(self, line):
            return lambda: iter([zip(["a", "b"], [[np.int64(5)], [np.float32(0.5), 1]])])

    assert written(Zipped(), "x\n" * 2, monkeypatch, capsys) == "1 5 2 0.5 1\n" * 2


def test_a_data_generator_may_make_samples_of_batches(monkeypatch, capsys):
    class Doubled(Words):
        def generate_batch(self, samples):
            return lambda: iter([*samples, samples[0]])

    generator = Doubled()
    generator.set_batch(2)
    out = written(generator, "1 5 6 7\n0 3\n1 2\n", monkeypatch, capsys)
    assert out == "3 5 6 7 1 1\n1 3 1 0\n3 5 6 7 1 1\n1 2 1 1\n1 2 1 1\n"


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([[("a", [])]], "slot 'a': expected a list of at least one value"),
        ([[("a", 1)]], "slot 'a': expected a list of at least one value, got 1"),
        ([[("a", ["x"])]], "slot 'a': expected numbers, got 'x'"),
        ([[("a", [1])], [("b", [1])]], r"every sample must have the slots \['a'\], got \['b'\]"),
        ([{"a": [1]}], "must yield lists of slots"),
    ],
)
def test_a_data_generator_refuses_what_is_no_sample(samples, message, monkeypatch, capsys):
    class Given(MultiSlotDataGenerator):
        def generate_sample(self, line):
            return lambda: iter(samples)

    with pytest.raises(DataError, match=message):
        written(Given(), "\n", monkeypatch, capsys)


def test_strings_are_written_as_they_are(monkeypatch, capsys):
    class Strings(MultiSlotStringDataGenerator):
        def generate_sample(self, line):
            return lambda: iter([[("words", line.split())]])

    assert written(Strings(), "a 05\n", monkeypatch, capsys) == "2 a 05\n"
    with pytest.raises(NotImplementedError, match="must define generate_sample"):
        written(MultiSlotDataGenerator(), "1\n", monkeypatch, capsys)


def test_a_pipe_command_of_a_script_under_as_paddle_finds_paddle(tmp_path):
    reader = tmp_path / "reader.py"
    reader.write_text(
        "import paddle.fluid.incubate.data_generator as dg\n"
        "class G(dg.MultiSlotDataGenerator):\n"
        "    def generate_sample(self, line):\n"
        "        return lambda: iter([[('n', [int(line)])]])\n"
        "G().run_from_stdin()\n"
    )
    script = tmp_path / "script.py"
    script.write_text(
        "import subprocess, sys\nimport paddle.fluid as fluid\n"
        f"print(subprocess.check_output([sys.executable, {str(reader)!r}], input=b'7\\n'))\n"
    )
    command = [sys.executable, "-m", "hpcdist", "--as-paddle", str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout == "b'1 7\\n'\n"


@pytest.mark.parametrize("kind", ["QueueDataset", "InMemoryDataset"])
def test_training_gives_what_fluid_1_8_5_gives(kind, tmp_path, capsys):
    """Losses and rows were measured with the real Fluid, one thread, the same files."""
    (tmp_path / "p0").write_text(
        "2 5 6 1 1 2 0.5 0.25\n1 7 1 0 2 1 2\n3 1 2 3 1 1 2 -1e-3 .5\n1 7 1 0 2 1 2\n"
        "1 9 1 1 2 3 4\n"
    )
    (tmp_path / "p1").write_text("2 5 6 1 1 2 0.5 0.25\n1 7 1 0 2 1 2\n1 8 1 0 2 1 2\n")
    words = layers.data("words", [1], dtype="int64", lod_level=1)
    label, z = layers.data("label", [1], dtype="int64"), layers.data("z", [2])
    tenth = fluid.initializer.Constant(0.1)
    rows = layers.embedding(words, [100, 4], param_attr=fluid.ParamAttr("t", initializer=tenth))
    pooled = layers.sequence_pool(rows, "sum")
    guess = layers.fc(layers.concat([pooled, z], 1), 1, param_attr=tenth)
    loss = layers.mean(layers.square_error_cost(guess, layers.cast(label, "float32")))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    made = dataset(kind, [tmp_path / "p0", tmp_path / "p1"], variables=[words, label, z])
    if kind == "InMemoryDataset":
        made.load_into_memory()
    exe.train_from_dataset(dataset=made, fetch_list=[loss], print_period=1)
    losses = [float(line.split("[")[1][:-1]) for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose(losses, [0.414813, 0.357259, 0.394803, 1.07489], rtol=2e-6)
    table = np.array(fluid.global_scope().find_var("t").get_tensor())[[0, 1, 5, 7, 8, 9], 0]
    measured = [0.1, 0.1089307, 0.11836188, 0.07704898, 0.08388806, 0.10661773]
    np.testing.assert_allclose(table, measured, rtol=1e-6)
