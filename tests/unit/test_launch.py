from __future__ import annotations

import io
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import hpcdist
from hpcdist.comm import process_manager
from hpcdist.comm.cluster import PSERVER, TRAINER, Cluster, RankRole
from hpcdist.compat import aspaddle
from hpcdist.errors import CommError, DeadlineError, HpcdistError, LaunchError
from hpcdist.launch import environment, launcher_check, logs, options, report, table
from tests.jobs import clean_environment

FRAME = """\
    +=======================================================================================+
    |                        Distributed Envs                      Value                    |
    +---------------------------------------------------------------------------------------+
    |                     PADDLE_TRAINERS_NUM                        8                      |
    |                PADDLE_TRAINER_ENDPOINTS  ... 0.1:58938,127.0.0.1:54203,127.0.0.1:44221|
    +=======================================================================================+"""


# -- environment -------------------------------------------------------------------------------
def endpoints_of_a_fluid_script(env):
    """Do what the scripts of Fluid's documentation do."""
    port = env["PADDLE_PSERVER_PORT"]
    servers = [":".join([ip, port]) for ip in env["PADDLE_PSERVER_IPS"].split(",")]
    return servers, env["PADDLE_CURRENT_IP"] + ":" + port


@pytest.mark.parametrize("servers", [(2, 3), (0, 3)])
def test_a_fluid_script_finds_its_role(servers):
    trainers = tuple(r for r in range(4) if r not in servers)
    cluster = Cluster(trainers, servers)
    for rank in range(4):
        env = environment.variables(cluster, rank)
        endpoints, current = endpoints_of_a_fluid_script(env)
        assert endpoints == list(cluster.endpoints)
        assert env["PADDLE_TRAINERS"] == env["PADDLE_TRAINERS_NUM"] == "2"
        assert env["TRAINING_ROLE"] == env["PADDLE_TRAINING_ROLE"]
        if rank in servers:
            assert env["PADDLE_TRAINING_ROLE"] == "PSERVER"
            assert endpoints.index(current) == servers.index(rank)
            assert f"{env['POD_IP']}:{env['PADDLE_PORT']}" == current
        else:
            assert env["PADDLE_TRAINING_ROLE"] == "TRAINER"
            assert env["PADDLE_TRAINER_ID"] == str(trainers.index(rank))
            names = env["PADDLE_TRAINER_ENDPOINTS"].split(",")
            assert names[trainers.index(rank)] == env["PADDLE_CURRENT_ENDPOINT"]


def test_several_ports_are_named_in_full_only():
    env = environment.variables(Cluster((0,), (1, 2), ("h:1", "h:2")), 2)
    assert env["PADDLE_PSERVERS_IP_PORT_LIST"] == "h:1,h:2"
    assert env["PADDLE_CURRENT_ENDPOINT"] == "h:2"
    assert "PADDLE_PSERVER_IPS" not in env


def test_without_servers_every_rank_is_a_trainer():
    cluster = Cluster((0, 1), trainer_endpoints=("h:1", "h:2"))
    env = environment.variables(cluster, 1)
    assert env["PADDLE_TRAINING_ROLE"] == env["TRAINING_ROLE"] == "TRAINER"
    assert (env["PADDLE_TRAINER_ID"], env["PADDLE_TRAINERS_NUM"]) == ("1", "2")
    assert (env["PADDLE_TRAINER_ENDPOINTS"], env["PADDLE_CURRENT_ENDPOINT"]) == ("h:1,h:2", "h:2")
    assert not [name for name in env if "PSERVER" in name]


# -- table -------------------------------------------------------------------------------------
def test_torchrun_counts_ranks_of_a_host_and_hosts():
    env = environment.of_torchrun(2, ["a", "b", "a"])
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
    assert [env[name] for name in names] == ["2", "3", "1", "2", "0", "a"]
    env = environment.of_torchrun(1, ["a", "b", "a"])
    assert [env[name] for name in names] == ["1", "3", "0", "1", "1", "a"]


def test_the_table_is_framed_as_fluids():
    value = "127.0.0.1:53762,127.0.0.1:58938,127.0.0.1:54203,127.0.0.1:44221"
    rows = {"PADDLE_TRAINERS_NUM": "8", "PADDLE_TRAINER_ENDPOINTS": value}
    assert table.environment(rows) == FRAME


@pytest.mark.parametrize(("length", "shown"), [(44, "x" * 44), (45, "... " + "x" * 41)])
def test_long_values_are_shortened_from_45_characters(length, shown):
    row = table.environment({"N": "x" * length}).splitlines()[3]
    assert row == f"    |{'N':>40}  {shown:^45}|"


def test_arguments_are_sorted():
    assert table.arguments({"seed": 0, "ips": "a", "log_dir": None}).splitlines() == [
        "-----------  Configuration Arguments -----------",
        "ips: a",
        "log_dir:",
        "seed: 0",
        "------------------------------------------------",
    ]


# -- guard -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("env", "size", "rank"),
    [
        ({}, None, 0),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}, 4, 3),
        ({"PMI_SIZE": "2", "PMI_RANK": "1"}, 2, 1),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}, 4, 2),
        ({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "3", "SLURM_PROCID": "1"}, 3, 1),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, None, 0),
        ({"OMPI_COMM_WORLD_SIZE": "1", "SLURM_STEP_NUM_TASKS": "4"}, 1, 0),
    ],
)
def test_what_the_launcher_started(env, size, rank):
    assert process_manager.launched_size(env) == size
    assert process_manager.launched_rank(env) == rank


def test_many_worlds_of_one_are_refused_with_advice():
    with pytest.raises(LaunchError, match="4 processes were started") as caught:
        launcher_check.check_world(4, 1, "/venv/bin")
    for advice in ("/venv/bin/mpirun", "--mpi=pmi2", "--mpi=pmix", "MPI4PY_MPIABI"):
        assert advice in str(caught.value)


def test_a_whole_world_is_accepted():
    launcher_check.check_world(4, 4, "")
    launcher_check.check_world(1, 1, "")
    launcher_check.check_world(None, 1, "")


# -- options -----------------------------------------------------------------------------------
def test_what_follows_the_script_is_the_scripts():
    asked = options.parse(["--pservers", "2", "train.py", "--pservers", "9", "--", "-x", "a"])
    assert (asked.pservers, asked.script) == (2, "train.py")
    assert asked.script_args == ("--pservers", "9", "--", "-x", "a")


def test_the_environment_gives_defaults(monkeypatch):
    monkeypatch.setenv("HPCDIST_PSERVERS", "3")
    monkeypatch.setenv("HPCDIST_ROLE_MAP", "servers-first")
    asked = options.parse(["train.py"])
    assert (asked.pservers, asked.role_map) == (3, "servers-first")
    assert options.parse(["--pservers", "1", "train.py"]).pservers == 1


@pytest.mark.parametrize("argv", [[], ["--pservers", "-1", "x"], ["--deadline", "0", "x"]])
def test_wrong_options_are_refused(argv):
    with pytest.raises(SystemExit) as caught:
        options.parse(argv)
    assert caught.value.code == 2


def test_only_one_rank_prints_help(monkeypatch, capsys):
    for name in [n for n in os.environ if n.startswith(("OMPI_", "PMI"))]:
        monkeypatch.delenv(name)
    with pytest.raises(SystemExit):
        options.parse(["--help"])
    shown = capsys.readouterr().out
    for word in ("mpirun -n 4", "srun", "--as-paddle", "node:*=1", "PADDLE_TRAINING_ROLE"):
        assert word in shown
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "1")
    with pytest.raises(SystemExit):
        options.parse(["--help"])
    assert capsys.readouterr().out == ""


# -- logs and reports --------------------------------------------------------------------------
def test_logs_are_named_as_fluids():
    assert logs.log_name(RankRole(TRAINER, 1)) == "workerlog.1"
    assert logs.log_name(RankRole(PSERVER, 0)) == "serverlog.0"


def test_a_log_directory_that_cannot_be_is_a_problem(tmp_path):
    assert logs.problem_with("log directory", str(tmp_path / "a" / "b")) == ""
    (tmp_path / "file").write_text("")
    assert "cannot make the log directory" in logs.problem_with(
        "log directory", str(tmp_path / "file" / "b")
    )


PEER = report.Peer(1, RankRole(TRAINER, 1), "n1", 4711)


def raised(script, source):
    try:
        exec(compile(source, script, "exec"), {})
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_a_report_says_who_where_and_what():
    error = raised("train.py", "def f():\n    raise ValueError('bad')\nf()")
    text = report.of_exception(error, "train.py", PEER, "step 3, mul")
    lines = text.splitlines()
    assert lines[0] == "rank 1 (trainer 1, pid 4711 on n1) failed at step 3, mul"
    assert lines[1].startswith('  File "train.py", line 3')
    assert lines[-1] == "ValueError: bad"
    assert "test_launch" not in text


def test_a_refusal_shows_no_frames_of_the_package():
    refusal = raised("t.py", "from hpcdist.launch import role_map as m\nm.parse('x', ['a', 'b'])")
    text = report.user_traceback(refusal, "t.py")
    assert "role_map.py" not in text
    assert 'File "t.py", line 2' in text


def test_a_long_traceback_is_cut():
    source = "def f(n):\n    return n and f(n - 1) or 1 / 0\nf(50)"
    text = report.user_traceback(raised("t.py", source), "t.py")
    assert text.count('File "t.py"') <= report.MOST_FRAMES
    assert "outer calls" in text


def test_the_dead_are_named():
    me = report.Peer(0, RankRole(TRAINER, 0), "n1", 4710)
    text = report.of_deaths([PEER], me, "step 13: waiting for w")
    assert "rank 1 (trainer 1, pid 4711 on n1) died" in text
    assert "rank 0 was here: step 13: waiting for w" in text


WAITING = '  File "/x/hpcdist/comm/progress.py", line 160 in linger\n  File "train.py", line 3'
STUCK = '  File "train.py", line 7 in <module>'


@pytest.mark.parametrize(
    ("me", "served", "missing_trainers", "left"),
    [
        (PEER, True, [], True),  # it waits for servers
        (PEER, True, [WAITING, WAITING], True),  # they wait for servers, or for a stuck one
        (PEER, True, [WAITING, STUCK], False),
        (PEER, True, ["it is stopped (SIGSTOP)"], False),
        (PEER, False, [], False),
        (report.Peer(2, RankRole(PSERVER, 0), "n1", 4712), True, [], False),
    ],
)
def test_a_deadline_is_left_to_servers_unless_a_trainer_is_stuck(
    me, served, missing_trainers, left
):
    assert report.is_left_to_servers(me, served, missing_trainers) == left


# -- as paddle ---------------------------------------------------------------------------------
@pytest.fixture
def paddle():
    assert "paddle" not in sys.modules
    aspaddle.install()
    yield
    aspaddle.uninstall()


@pytest.mark.usefixtures("paddle")
def test_paddle_is_hpcdist():
    names: dict[str, object] = {}
    exec(
        "import paddle, paddle.fluid as fluid, paddle.fluid.core as core\n"
        "import paddle.dataset.uci_housing\n"
        "import paddle.fluid.unique_name as unique_name\n"
        "from paddle.fluid import layers, compiler, average\n"
        "import paddle.fluid.parallel_executor, paddle.fluid.param_attr\n"
        "from paddle.fluid.transpiler import HashName\n",
        names,
    )
    assert names["fluid"] is hpcdist
    assert names["core"] is hpcdist.compat.core
    assert names["layers"] is hpcdist.layers
    assert names["compiler"].CompiledProgram is hpcdist.CompiledProgram
    assert names["average"] is hpcdist.compat.average
    assert names["fluid"].parallel_executor.ParallelExecutor is hpcdist.ParallelExecutor
    assert names["fluid"].param_attr.ParamAttr is hpcdist.ParamAttr
    assert names["unique_name"] is hpcdist.unique_name
    assert names["HashName"] is hpcdist.transpiler.HashName
    assert names["paddle"].dataset.uci_housing is hpcdist.compat.datasets.uci_housing
    assert names["paddle"].batch is hpcdist.batch
    assert names["paddle"].reader.shuffle is hpcdist.reader.shuffle
    # The modules are still themselves.
    assert hpcdist.layers.__spec__.name == "hpcdist.layers"


PADDLE2 = """
import paddle
from paddle.distributed import fleet
import paddle.static.nn

paddle.enable_static()
main, startup = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(main, startup):
    paddle.seed(3)
    image = paddle.static.data(name="x", shape=[None, 3, 8, 8], dtype="float32")
    label = paddle.static.data(name="y", shape=[None, 1], dtype="int64")
    hidden = paddle.static.nn.conv2d(image, num_filters=4, filter_size=3)
    hidden = paddle.static.nn.batch_norm(hidden, act="relu")
    scores = paddle.static.nn.fc(
        x=hidden, size=5, weight_attr=paddle.ParamAttr(name="w"), activation="tanh"
    )
    loss = paddle.nn.functional.cross_entropy(input=scores, label=label)
    accuracy = paddle.metric.accuracy(input=scores, label=label, k=1)
    fleet.init(is_collective=True)
    fleet.distributed_optimizer(make_optimizer(paddle)).minimize(loss, startup)
exe = paddle.static.Executor(paddle.CPUPlace())
exe.run(startup)
losses = [float(exe.run(main, feed=feed, fetch_list=[loss.name])[0][0]) for _ in range(3)]
rank = paddle.distributed.get_rank(), paddle.distributed.get_world_size()
"""


@pytest.mark.usefixtures("paddle")
@pytest.mark.parametrize(
    ("make_optimizer", "same"),
    [
        (
            lambda paddle: paddle.optimizer.Momentum(
                learning_rate=0.1,
                momentum=0.8,
                weight_decay=paddle.regularizer.L2Decay(0.01),
                grad_clip=paddle.nn.ClipGradByGlobalNorm(0.5),
            ),
            lambda: hpcdist.optimizer.Momentum(
                0.1,
                0.8,
                regularization=hpcdist.regularizer.L2Decay(0.01),
                grad_clip=hpcdist.clip.GradientClipByGlobalNorm(0.5),
            ),
        ),
        (
            lambda paddle: paddle.optimizer.SGD(0.1, parameters=["w"], weight_decay=0.01),
            lambda: hpcdist.optimizer.SGD(0.1, ["w"], hpcdist.regularizer.L2Decay(0.01)),
        ),
        (
            lambda paddle: paddle.optimizer.Adam(weight_decay=0.01, epsilon=1e-4),
            lambda: hpcdist.optimizer.Adam(
                epsilon=1e-4, regularization=hpcdist.regularizer.L2Decay(0.01)
            ),
        ),
    ],
)
def test_a_static_script_of_paddle_2(make_optimizer, same, monkeypatch):
    for name in ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "TRAINING_ROLE"):
        monkeypatch.delenv(name, raising=False)
    rng = np.random.default_rng(1)
    feed = {
        "x": rng.random((6, 3, 8, 8), np.float32),
        "y": rng.integers(0, 5, (6, 1)),
    }
    script: dict[str, Any] = {"feed": feed, "make_optimizer": make_optimizer}
    with hpcdist.scope_guard(hpcdist.Scope()):
        exec(PADDLE2, script)
    assert script["rank"] == (0, 1)

    main, startup = hpcdist.Program(), hpcdist.Program()
    main.random_seed = startup.random_seed = 3
    with hpcdist.program_guard(main, startup), hpcdist.scope_guard(hpcdist.Scope()):
        image = hpcdist.data("x", [None, 3, 8, 8])
        label = hpcdist.data("y", [None, 1], "int64")
        hidden = hpcdist.layers.batch_norm(hpcdist.layers.conv2d(image, 4, 3), act="relu")
        scores = hpcdist.layers.fc(hidden, 5, param_attr=hpcdist.ParamAttr(name="w"), act="tanh")
        loss = hpcdist.layers.mean(hpcdist.layers.softmax_with_cross_entropy(scores, label))
        same().minimize(loss)
        exe = hpcdist.Executor(hpcdist.CPUPlace())
        exe.run(startup)
        losses = [float(exe.run(main, feed=feed, fetch_list=[loss])[0][0]) for _ in range(3)]
    assert losses[0] != losses[2]
    assert script["losses"] == losses


@pytest.mark.usefixtures("paddle")
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import paddle\npaddle.static.InputSpec", "paddle.static has no .InputSpec."),
        ("import paddle\npaddle.nn.Linear(3, 4)", "paddle.nn has no .Linear."),
        ("import paddle\npaddle.distributed.nothing", "paddle.distributed has no .nothing."),
        ("import paddle.nn.initializer", "paddle.nn has no .initializer."),
        ("from paddle.optimizer import AdamW", "paddle.optimizer has no .AdamW."),
        ("import paddle\npaddle.disable_static()", "hpcdist runs static programs only"),
        ("import paddle.fluid.nothing", "fluid has no .nothing., neither here nor in Fluid"),
        ("import paddle\npaddle.nothing", "paddle has no .nothing., neither here"),
        ("from paddle.fluid import nothing", "cannot import name 'nothing' from 'hpcdist'"),
    ],
)
def test_what_hpcdist_lacks_is_refused_by_name(source, message):
    with pytest.raises((ImportError, AttributeError, HpcdistError), match=message):
        exec(source, {})


@pytest.fixture
def told():
    aspaddle.tell()
    yield
    aspaddle.uninstall()


@pytest.mark.usefixtures("told")
def test_a_script_that_imports_paddle_without_the_option_is_told(monkeypatch, tmp_path):
    with pytest.raises(ImportError, match="paddle, which is not installed: .*--as-paddle"):
        import paddle.fluid
    (tmp_path / "paddle.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(UserWarning, match="every rank trains alone: .*--as-paddle"):
        import paddle  # noqa: F401


def test_a_real_paddle_is_not_replaced(monkeypatch):
    monkeypatch.setitem(sys.modules, "paddle", sys)
    with pytest.raises(LaunchError, match="already imported"):
        aspaddle.install()


@pytest.mark.parametrize(
    ("error", "is_of_messages"),
    [
        (CommError("rank 0 waiting for a sum: MPI_ERR_OTHER"), True),
        (
            type("Exception", (Exception,), {"__module__": "mpi4py.MPI"})("MPI_ERR_PROC_FAILED"),
            True,
        ),
        (DeadlineError("nothing came"), False),  # it names who is missing
        (ZeroDivisionError(), False),
    ],
)
def test_errors_that_the_death_of_another_rank_explains(error, is_of_messages):
    assert report.is_of_messages(error) is is_of_messages


@pytest.mark.parametrize("way", ["option", "setting"])
def test_files_of_a_job_get_no_permission_that_the_umask_takes(tmp_path, way):
    script = tmp_path / "train.py"
    script.write_text(
        "import hpcdist as fluid\n"
        "main = fluid.default_main_program()\n"
        "fluid.layers.fc(fluid.data('x', [None, 2]), 1)\n"
        "exe = fluid.Executor()\n"
        "exe.run(fluid.default_startup_program())\n"
        "fluid.checkpoint.save(exe, 'saved', 1)\n"
        "fluid.io.save_params(exe, 'model', format='fluid')\n"
    )
    command = [sys.executable, "-m", "hpcdist", *(["--umask", "077"] if way == "option" else [])]
    env = {**clean_environment(), **({"HPCDIST_UMASK": "077"} if way == "setting" else {})}
    subprocess.run([*command, "--log-dir", "logs", script], cwd=tmp_path, env=env, check=True)
    made = [p for folder in ("saved", "model", "logs") for p in (tmp_path / folder).rglob("*")]
    assert len(made) > 5
    assert not [p for p in made if p.stat().st_mode & 0o077]


def test_the_terminal_hears_why_a_log_cannot_be_written(monkeypatch):
    terminal = io.StringIO()
    log = open("/dev/full", "w", buffering=1)  # noqa: SIM115
    monkeypatch.setattr(sys, "stderr", logs._Both(terminal, log))
    with pytest.raises(OSError, match="No space left"):
        print("as usual", file=sys.stderr)
    logs.Output().announce("rank 0 failed")
    with pytest.raises(OSError, match="No space left"):
        log.close()  # it still has what could not be written
    assert terminal.getvalue() == "as usual\nhpcdist: rank 0 failed\n"
