"""Training and inference from Datasets."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import DataError, FeedError
from tests.support.multi_slot_files import dataset, slot_variables, write

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def files(tmp_path):
    return [write(tmp_path / "a", range(3)), write(tmp_path / "b", range(10, 14))]


def test_a_loader_gives_the_batches_of_a_dataset(files):
    made = dataset("QueueDataset", files)
    loader = fluid.io.DataLoader.from_dataset(made, fluid.cpu_places(1))
    steps = [[np.asarray(p["label"]).ravel().tolist() for p in step] for step in loader()]
    assert steps == [[[0, 1]], [[2, 10]], [[11, 12]]]  # the last batch is short
    assert {tuple(p["label"].shape()) for step in loader() for p in step} == {(2, 1)}  # as Fluid's
    loader = fluid.io.DataLoader.from_dataset(made, fluid.cpu_places(1), drop_last=False)
    assert [len(part["label"]) for step in loader for part in step] == [2, 2, 2, 1]
    loader = fluid.io.DataLoader.from_dataset(made, fluid.cpu_places(3), drop_last=True)
    assert [len(step) for step in loader] == [3]


# training


def net():
    words, z, label = variables = slot_variables()
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


def test_training_that_updates_nothing_is_told_and_inference_is_not(files, recwarn):
    variables = slot_variables()
    loss = layers.mean(layers.fc(variables[1], 1))
    made = dataset("QueueDataset", files, variables=variables)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    exe.infer_from_dataset(dataset=made, fetch_list=[loss])
    exe.train_from_dataset(fluid.default_main_program().clone(for_test=True), made)
    assert not [w for w in recwarn if "no parameter is updated" in str(w.message)]
    with pytest.warns(UserWarning, match=r"no parameter is updated.*minimize\(\).*infer_from_data"):
        exe.train_from_dataset(dataset=made, fetch_list=[loss])


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
