"""Jobs that are saved and restored: on the same ranks, on others, in another mode; fluid.io."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import CheckpointError
from tests.mpi.chain_jobs import run
from tests.support.job import run_job, values

pytestmark = pytest.mark.mpi(min_size=2)
BATCHES = [
    {
        "x": np.random.default_rng(k).random((8, 13), dtype=np.float32),
        "ids": np.random.default_rng(k + 99).integers(0, 3000, (8, 1)),
    }
    for k in range(8)
]


def build():
    """Return the loss of a net with a cut weight and a sparse table, trained by Adam."""
    fluid.default_startup_program().random_seed = 2
    x = fluid.data(name="x", shape=[None, 13], dtype="float32")
    ids = fluid.data(name="ids", shape=[None, 1], dtype="int64")
    hidden = fluid.layers.fc(fluid.layers.fc(x, size=1500, act="relu"), size=12)
    looked_up = fluid.layers.embedding(ids, size=[3000, 12], is_sparse=True)
    loss = fluid.layers.mean(fluid.layers.square(hidden + looked_up))
    fluid.optimizer.Adam(fluid.layers.exponential_decay(0.01, 3, 0.8)).minimize(loss)
    return loss


def train(begin, end, *, load=None, save=None):
    """Return a script that trains some steps, after ``load(exe)`` and before ``save(exe)``."""

    def script(role):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            loss, exe = build(), fluid.Executor()
            exe.run(fluid.default_startup_program())
            if load is not None:
                load(exe)
            losses = [exe.run(feed=batch, fetch_list=[loss])[0] for batch in BATCHES[begin:end]]
            if save is not None:
                save(exe)
            return [float(value.reshape(-1)[0]) for value in losses]

    return script


def saves(root, **how):
    def save(exe):
        fluid.checkpoint.save(exe, root, 4, extra="four", **how)
        fluid.checkpoint.wait()

    return save


def restores(root):
    def restore(exe):
        found = fluid.checkpoint.restore(exe, root)
        assert (found.step, found.extra) == (4, "four")

    return restore


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("trainers", "servers"), [(1, 1), (2, 0), (2, 1), (2, 2)])
def test_a_restored_job_makes_the_bits_of_an_uninterrupted_one(
    mpi_tmp_path, trainers, servers, asynchronous
):
    whole = values(run_job(trainers, servers, train(0, 8)))
    save = saves(mpi_tmp_path, asynchronous=asynchronous)
    values(run_job(trainers, servers, train(0, 4, save=save)))
    rest = values(run_job(trainers, servers, train(4, 8, load=restores(mpi_tmp_path))))
    assert rest == [losses[4:] for losses in whole]


@pytest.mark.parametrize(
    ("before", "after"),
    [((1, 1), (2, 0)), ((2, 0), (1, 1)), ((1, 2), (2, 1)), ((2, 1), (1, 3)), ((2, 2), (3, 0))],
)
def test_a_job_goes_on_in_another_mode(mpi_tmp_path, before, after):
    whole = values(run_job(*before, train(0, 8)))
    values(run_job(*before, train(0, 4, save=saves(mpi_tmp_path))))
    rest = values(run_job(*after, train(4, 8, load=restores(mpi_tmp_path))))
    for losses in rest:
        np.testing.assert_allclose(losses, whole[0][4:], rtol=2e-5)
        assert losses[0] == pytest.approx(whole[0][4], rel=2e-7)  # made of the same parameters


def check_that_it_goes_on(save, load):
    """One that goes on from what it has saved trains as a job that has never ended."""
    whole = values(run_job(1, 1, train(0, 8)))
    values(run_job(1, 1, train(0, 4, save=save)))
    rest = values(run_job(1, 1, train(4, 8, load=load)))
    assert rest == [losses[4:] for losses in whole]


@pytest.mark.parametrize(("format", "name"), [("hdf5", None), ("fluid", None), ("fluid", "all")])
def test_fluid_io_saves_and_loads_what_servers_have(mpi_tmp_path, format, name):
    def save(exe):
        fluid.io.save_persistables(exe, mpi_tmp_path, filename=name, format=format)
        fluid.io.save_params(exe, mpi_tmp_path / "only", format=format)

    def load(exe):
        fluid.io.load_persistables(exe, mpi_tmp_path, filename=name)

    check_that_it_goes_on(save, load)


def test_fluid_save_takes_from_servers_what_only_they_have(mpi_tmp_path):
    path = str(mpi_tmp_path / "model")
    save = lambda exe: fluid.save(fluid.default_main_program(), path)  # noqa: E731
    load = lambda exe: fluid.load(fluid.default_main_program(), path, exe)  # noqa: E731
    check_that_it_goes_on(save, load)


def test_a_trainer_loads_no_rows_that_it_only_looks_up(mpi_tmp_path):
    path = str(mpi_tmp_path / "model")

    def save(exe):
        fluid.save(fluid.default_main_program(), path)

    def load(exe):
        fluid.load(fluid.default_main_program(), path, exe)
        held = fluid.global_scope().find_var("embedding_0.w_0").value  # memory that nobody wrote
        assert not np.array_equal(held, fluid.load_program_state(path)["embedding_0.w_0"])
        assert fluid.global_scope().find_var("fc_0.w_0").value.any()

    def read(exe):
        save(exe)
        table = fluid.global_scope().find_var("embedding_0.w_0")
        saved = fluid.load_program_state(path)["embedding_0.w_0"]
        np.testing.assert_array_equal(np.array(table.get_tensor()), saved)

    values(run_job(1, 1, train(0, 2, save=save)))
    values(run_job(1, 1, train(2, 4, load=load, save=read)))


def test_what_cannot_be_restored_is_the_same_error_on_all_trainers(mpi_tmp_path):
    (mpi_tmp_path / "step-000004").mkdir(exist_ok=True)
    (mpi_tmp_path / "step-000004" / "manifest.h5").write_bytes(b"foreign")

    def load(exe):
        fluid.checkpoint.restore(exe, mpi_tmp_path / "step-000004")

    outcomes = run_job(2, 0, train(0, 1, load=load), aborts=False)
    assert all("manifest.h5: not a checkpoint of hpcdist" in o.error for o in outcomes)


def transpiled(role, root, begin, end, **how):
    """Train through a transpiler of the script's own, asynchronously if ``how`` says so."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        loss, exe = build(), fluid.Executor()
        made = fluid.DistributeTranspiler(how.pop("config", None))
        endpoints = "ps0:6174"
        made.transpile(
            0 if role.kind == "PSERVER" else role.index, pservers=endpoints, trainers=1, **how
        )
        if role.kind == "PSERVER":
            main, startup = made.get_pserver_programs(endpoints)
            exe.run(startup)
            exe.run(main)
            raise SystemExit(0)
        exe.run(fluid.default_startup_program())
        if begin:
            restores(root)(exe)
        losses = []
        for step in range(begin, end):
            value = exe.run(made.get_trainer_program(), BATCHES[step], [loss])[0]
            losses.append(float(value.reshape(-1)[0]))
            if step == 3:
                saves(root)(exe)
        return losses


def test_behind_a_trainers_own_startup_servers_load_too(mpi_tmp_path):
    def script(role, begin, end):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            loss, exe = build(), fluid.Executor()
            made = fluid.DistributeTranspiler()
            made.transpile(0, pservers="ps0:6174", trainers=1)
            if role.kind == "PSERVER":
                for program in reversed(made.get_pserver_programs("ps0:6174")):
                    exe.run(program)
                raise SystemExit(0)
            exe.run(made.get_trainer_startup_program())
            if begin:
                fluid.io.load_persistables(exe, mpi_tmp_path)
            program = made.get_trainer_program()
            losses = [exe.run(program, BATCHES[k], [loss])[0] for k in range(begin, end)]
            if end == 4:
                fluid.io.save_persistables(exe, mpi_tmp_path)
            return list(map(float, np.concatenate(losses)))

    whole = values(run_job(1, 1, lambda role: script(role, 0, 8)))
    values(run_job(1, 1, lambda role: script(role, 0, 4)))
    rest = values(run_job(1, 1, lambda role: script(role, 4, 8)))
    assert rest == [losses[4:] for losses in whole]


@pytest.mark.parametrize("sync_mode", [True, False])
def test_scripts_that_transpile_are_saved_and_restored(mpi_tmp_path, sync_mode):
    how = {"sync_mode": sync_mode}
    whole = values(run_job(1, 1, lambda role: transpiled(role, mpi_tmp_path, 0, 8, **how)))
    rest = values(run_job(1, 1, lambda role: transpiled(role, mpi_tmp_path, 4, 8, **how)))
    assert rest == [losses[4:] for losses in whole]


def with_table(begin, end, root):
    """Train a distributed table of any ids; save at step 4, or restore what was saved there."""

    def script(role):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            ids = fluid.data("ids", [None, 1], "int64")
            rows = fluid.layers.embedding(ids, [-1, 8], is_sparse=True, is_distributed=True)
            loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(rows, 1)))
            fluid.optimizer.Adam(0.05, lazy_mode=True).minimize(loss)
            exe, losses = fluid.Executor(), []
            exe.run(fluid.default_startup_program())
            if begin:
                restores(root)(exe)
            for step in range(begin, end):
                drawn = np.random.default_rng(step).integers(-40, 40, (16, 1)) * 10**15
                losses.append(exe.run(feed={"ids": drawn}, fetch_list=[loss])[0])
                if step == 3:
                    saves(root)(exe)
            return [float(value.reshape(-1)[0]) for value in losses]

    return script


def test_rows_that_only_servers_have_are_not_left_out_silently(mpi_tmp_path):
    def script(role):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            ids = fluid.data("ids", [None, 1], "int64")
            rows = fluid.layers.embedding(ids, [-1, 8], is_sparse=True, is_distributed=True)
            fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(rows))
            exe = fluid.Executor()
            exe.run(fluid.default_startup_program())
            with pytest.raises(CheckpointError, match="rows of embedding_0.w_0 are on the servers"):
                fluid.io.save_params(exe, mpi_tmp_path)

    values(run_job(1, 1, script))
    assert not list(mpi_tmp_path.iterdir())


@pytest.mark.parametrize("after", [(1, 1), (1, 3)])
def test_a_distributed_table_goes_on_on_any_number_of_servers(mpi_tmp_path, after):
    whole = values(run_job(1, 1, with_table(0, 8, mpi_tmp_path)))
    rest = values(run_job(*after, with_table(4, 8, mpi_tmp_path)))
    assert rest == [losses[4:] for losses in whole]


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 0), (1, 1)),
        ((1, 1, "collective"), (2, 0)),
        ((2, 0), (3, 0)),
        ((2, 2, "collective"), (2, 1)),
        ((2, 1), (3, 1, "collective")),
    ],
)
def test_a_table_of_trainers_goes_on_on_servers_and_on_others(mpi_tmp_path, shapes):
    before, after = shapes
    whole = run(before, with_table(0, 8, mpi_tmp_path))
    rest = run(after, with_table(4, 8, mpi_tmp_path))
    np.testing.assert_allclose(rest, [whole[0][4:]] * len(rest), rtol=1e-5)


def test_rows_that_trainers_share_out_are_not_left_out_silently(mpi_tmp_path):
    def script(role):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            ids = fluid.data("ids", [None, 1], "int64")
            rows = fluid.layers.embedding(ids, [-1, 8], is_sparse=True, is_distributed=True)
            loss = fluid.layers.mean(fluid.layers.fc(rows, 1))
            fluid.optimizer.SGD(0.1).minimize(loss)
            exe = fluid.Executor()
            exe.run(fluid.default_startup_program())
            exe.run(feed={"ids": np.arange(4).reshape(-1, 1)}, fetch_list=[loss])
            for save in (
                lambda: fluid.io.save_persistables(exe, mpi_tmp_path),
                lambda: fluid.io.save_inference_model(mpi_tmp_path, ["ids"], [loss], exe),
            ):
                with pytest.raises(CheckpointError, match="are divided among 2 trainers"):
                    save()
            fluid.io.save_vars(exe, mpi_tmp_path / "dense", vars=["fc_0.w_0"])

    values(run_job(2, 0, script))
    assert [path.name for path in mpi_tmp_path.iterdir()] == ["dense"]


def save_and_load(exe, folder, kind):
    main = fluid.default_main_program()
    if kind == "inference":
        out = main.global_block().var("fc_1.tmp_1")
        fluid.io.save_inference_model(folder, ["x"], [out], exe)
        with fluid.scope_guard(fluid.Scope()):
            fluid.io.load_inference_model(folder, exe)
    elif kind == "state":
        fluid.save(main, f"{folder}/net")
        assert "fc_0.w_0" in fluid.load_program_state(f"{folder}/net")
        fluid.load(main, f"{folder}/net", exe)
    else:
        how = "fluid" if kind == "fluid" else "hdf5"
        fluid.io.save_persistables(exe, folder, format=how)
        fluid.io.load_persistables(exe, folder)


@pytest.mark.parametrize("kind", ["persistables", "inference", "fluid", "state"])
@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (3, 0), (2, 1), (2, 2)])
def test_what_all_trainers_save_they_can_load_next(mpi_tmp_path, trainers, servers, kind):
    def saves_often(exe):
        for number in range(3):
            save_and_load(exe, str(mpi_tmp_path / str(number)), kind)

    values(run_job(trainers, servers, train(0, 2, save=saves_often)))


@pytest.mark.parametrize("kind", ["persistables", "inference", "fluid", "state"])
@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (2, 1), (2, 2)])
def test_each_trainer_may_save_into_a_directory_of_its_own(mpi_tmp_path, trainers, servers, kind):
    def script(role):
        number = iter(range(9))

        def save(exe):
            save_and_load(exe, str(mpi_tmp_path / f"{role.index}-{next(number)}"), kind)

        def saves(exe):
            save(exe)
            if role.index == 0:
                fluid.io.save_params(exe, str(mpi_tmp_path / "alone"))
            for _ in range(2):
                save(exe)
            fluid.io.save_params(exe, str(mpi_tmp_path / "all"))
            fluid.io.load_params(exe, str(mpi_tmp_path / "all"))

        return train(0, 2, save=saves)(role)

    values(run_job(trainers, servers, script))
    folders = {path.name for path in mpi_tmp_path.iterdir()}
    assert folders == {"alone", "all", *(f"{k}-{n}" for k in range(trainers) for n in range(3))}
    for number in range(3):
        first, other = (str(mpi_tmp_path / f"{k}-{number}") for k in (0, 1))
        name = "/net" if kind == "state" else ""
        if kind != "inference":
            wanted, found = map(fluid.load_program_state, (first + name, other + name))
            assert wanted.keys() == found.keys()
            for variable, value in wanted.items():
                np.testing.assert_array_equal(found[variable], value, variable)


def test_trainer_0_may_save_alone(mpi_tmp_path):
    def script(role):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            loss, exe = build(), fluid.Executor()
            exe.run(fluid.default_startup_program())
            for batch in BATCHES[:4]:
                exe.run(feed=batch, fetch_list=[loss])
                if role.index == 0:
                    fluid.io.save_persistables(exe, str(mpi_tmp_path / "alone"))
            fluid.io.save_persistables(exe, str(mpi_tmp_path / "all"))
            fluid.io.load_persistables(exe, str(mpi_tmp_path / "all"))

    values(run_job(2, 0, script))


def test_trainer_0s_error_is_that_of_all_that_save(mpi_tmp_path):
    (mpi_tmp_path / "file").write_text("")

    def save(exe):
        fluid.io.save_persistables(exe, str(mpi_tmp_path / "file"))

    outcomes = run_job(2, 0, train(0, 1, save=save), aborts=False)
    assert all("Error: " in o.error or "cannot be made" in o.error for o in outcomes)
