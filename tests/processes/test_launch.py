from __future__ import annotations

import io
import os
import runpy
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from hpcdist.comm import process_manager, world
from hpcdist.comm.clock_offset import ClockOffset
from hpcdist.comm.cluster import PSERVER, TRAINER, Cluster, RankRole
from hpcdist.errors import CommError, DeadlineError, LaunchError
from hpcdist.launch import (
    environment,
    launcher_check,
    logs,
    options,
    rank_steps,
    report,
    start_table,
)
from tests.scripts import read_script
from tests.support.jobs import clean_environment
from tests.support.threads import run_in_world

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
    assert start_table.environment(rows) == FRAME


@pytest.mark.parametrize(("length", "shown"), [(44, "x" * 44), (45, "... " + "x" * 41)])
def test_long_values_are_shortened_from_45_characters(length, shown):
    row = start_table.environment({"N": "x" * length}).splitlines()[3]
    assert row == f"    |{'N':>40}  {shown:^45}|"


def test_arguments_are_sorted():
    assert start_table.arguments({"seed": 0, "ips": "a", "log_dir": None}).splitlines() == [
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


def test_many_worlds_of_one_are_refused_with_advice(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with pytest.raises(LaunchError, match="4 processes were started") as caught:
        launcher_check.check_world(4, 1, "/venv/bin")
    left_over = "its OMPI_COMM_WORLD_SIZE is left over from another job: unset it"
    for advice in ("/venv/bin/mpirun", "--mpi=pmi2", "--mpi=pmix", "MPI4PY_MPIABI", left_over):
        assert advice in str(caught.value)


def test_srun_without_its_option_is_told_first_of_srun(monkeypatch):
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    with pytest.raises(LaunchError, match="srun was not told how to start the MPI") as caught:
        launcher_check.check_world(4, 1, "/venv/bin")
    assert "/venv/bin/mpirun" not in str(caught.value) and "--mpi=pmix" in str(caught.value)


HEADS = "  sl  local_address rem_address   st\n"


@pytest.mark.parametrize(
    ("sockets", "others", "dead"),
    [
        ("   0: 0100007F:9C40 00000000:0000 0A\n", {}, False),
        ("   0: 0100007F:9C40 0100007F:1234 01\n", {}, True),  # connected, nobody listens
        ("", {}, True),
        ("", {"PMI_SIZE": "2"}, False),
    ],
)
def test_a_launcher_that_has_ended(sockets, others, dead, tmp_path):
    env = {"PMIX_SERVER_URI41": "prterun-n1-4711@0.0;tcp4://127.0.0.1:40000", **others}
    assert process_manager.dead_servers(env, str(tmp_path)) == []  # no system that tells
    (tmp_path / "tcp").write_text(HEADS + sockets)
    (tmp_path / "tcp6").write_text(HEADS)
    assert process_manager.dead_servers(env, str(tmp_path)) == ["PMIX_SERVER_URI41"] * dead
    assert process_manager.dead_servers({"PMIX_RANK": "0"}, str(tmp_path)) == []


def test_a_job_does_not_begin_by_a_launcher_that_has_ended(monkeypatch):
    monkeypatch.delenv("PMI_SIZE", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("PMIX_SERVER_URI41", f"prterun-n1-4711@0.0;tcp4://127.0.0.1:{port}")
    with pytest.raises(LaunchError, match="PMIX_SERVER_URI41 names the launcher of a job that has"):
        world.mpi_world.__wrapped__()


def test_hosts_whose_clocks_differ_are_told_at_the_start(capsys):
    def begin(transport):
        start = SimpleNamespace(hosts=["a", "b"], rank=transport.rank, transport=transport)
        # So far is rank 1's clock from rank 0's, by messages; both have one wall clock here.
        rank_steps.tell_skew(start, ClockOffset(40 * 10**9 * transport.rank, 0))

    run_in_world(2, begin)
    assert capsys.readouterr().err == (
        "hpcdist: the wall clock of b is -40 s from that of a: let chrony or ntpd set the clocks: "
        "times of files and logs cannot be compared\n"
    )


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
    assert "mpirun -n 4" in shown
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


def raised(path, source):
    path.write_text(source)
    try:
        runpy.run_path(str(path), run_name="__main__")
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_a_report_says_who_where_and_what(tmp_path):
    script = tmp_path / "train.py"
    error = raised(script, "def f():\n    raise ValueError('bad')\nf()")
    text = report.of_exception(error, PEER, "step 3, mul")
    lines = text.splitlines()
    assert lines[0] == "rank 1 (trainer 1, pid 4711 on n1) failed at step 3, mul"
    assert lines[1].startswith(f'  File "{script}", line 3')
    assert lines[-1] == "ValueError: bad"
    assert "test_launch" not in text


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_asks_for_input_is_told_who_has_it(rank):
    me = report.Peer(rank, RankRole(TRAINER, rank), "n1", 4711)
    text = report.of_exception(EOFError("EOF when reading a line"), me, "step 0")
    assert ("gives standard input to rank 0 only" in text) == (rank == 1)
    assert "standard input" not in report.of_exception(EOFError(), None, "step 0")
    assert "standard input" not in report.of_exception(ValueError(), PEER, "step 0")


def test_a_thread_that_cannot_be_started_is_explained():
    text = report.of_exception(RuntimeError("can't start new thread"), PEER, "step 0")
    assert "can't start new thread\n  this user, container or batch job may have no more" in text
    assert "ulimit -u" in text


def test_a_refusal_shows_no_frames_of_the_package(tmp_path):
    script = tmp_path / "t.py"
    refusal = raised(script, "from hpcdist.launch import role_map as m\nm.parse('x', ['a', 'b'])")
    text = report.user_traceback(refusal)
    assert "role_map.py" not in text
    assert f'File "{script}", line 2' in text


@pytest.mark.parametrize("words", ["step 3: ValueError: bad", "refused"])
def test_a_cause_is_told_once(tmp_path, words):
    source = (
        "try:\n    raise ValueError('bad')\n"
        f"except ValueError as e:\n    raise OSError({words!r}) from e"
    )
    text = report.user_traceback(raised(tmp_path / "t.py", source))
    assert text.endswith("ValueError: bad")
    assert ("caused by" in text) == (words == "refused")


def test_a_message_reaches_a_terminal_that_cannot_show_its_letters(tmp_path):
    code = (
        "from hpcdist.launch.logs import Output; from hpcdist.comm.cluster import RankRole; out = "
        f"Output(); out.direct(1, RankRole('TRAINER', 1), {str(tmp_path)!r}, all_output=False); "
        "out.announce('b\\xfccher, \\udcc3')"
    )
    env = clean_environment() | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    assert ran.stderr == b"hpcdist: b\\xfccher, \\udcc3\n"


def test_a_long_traceback_is_cut(tmp_path):
    source = "def f(n):\n    return n and f(n - 1) or 1 / 0\nf(50)"
    text = report.user_traceback(raised(tmp_path / "t.py", source))
    assert 0 < text.count('t.py", line') <= report.MOST_FRAMES
    assert "outer calls" in text


def test_the_dead_are_named():
    me = report.Peer(0, RankRole(TRAINER, 0), "n1", 4710)
    text = report.of_deaths([PEER], me, "step 13: waiting for w")
    assert "rank 1 (trainer 1, pid 4711 on n1) died" in text
    assert "rank 0 was here: step 13: waiting for w" in text


WAITING = '  File "/x/hpcdist/comm/progress.py", line 160 in linger\n  File "train.py", line 3'
STUCK = '  File "train.py", line 7 in <module>'


@pytest.mark.parametrize(
    ("me", "served", "missing", "left"),
    [
        (PEER, True, [], True),  # it waits for servers
        (PEER, True, [WAITING, WAITING], True),  # they wait for servers, or for a stuck one
        (PEER, True, [WAITING, STUCK], False),
        (PEER, True, ["it is stopped (SIGSTOP)"], False),
        (PEER, False, [], False),
        (report.Peer(2, RankRole(PSERVER, 0), "n1", 4712), True, [], False),
    ],
)
def test_a_deadline_is_left_to_servers_unless_a_missing_rank_is_stuck(me, served, missing, left):
    assert report.is_left_to_servers(me, served, missing) == left


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
    script.write_text(read_script("saves_both_ways"))
    command = [sys.executable, "-m", "hpcdist", *(["--umask", "077"] if way == "option" else [])]
    env = {**clean_environment(), **({"HPCDIST_UMASK": "077"} if way == "setting" else {})}
    subprocess.run([*command, "--log-dir", "logs", script], cwd=tmp_path, env=env, check=True)
    made = [p for folder in ("saved", "model", "logs") for p in (tmp_path / folder).rglob("*")]
    assert len(made) > 5
    assert not [p for p in made if p.stat().st_mode & 0o077]


def test_the_terminal_hears_why_a_log_cannot_be_written(monkeypatch):
    terminal = io.StringIO()
    log = open("/dev/full", "w", buffering=1)  # noqa: SIM115
    monkeypatch.setattr(sys, "stderr", logs.Tee(terminal, log))
    with pytest.raises(OSError, match="No space left"):
        print("as usual", file=sys.stderr)
    logs.Output().announce("rank 0 failed")
    with pytest.raises(OSError, match="No space left"):
        log.close()  # it still has what could not be written
    assert terminal.getvalue() == "as usual\nhpcdist: rank 0 failed\n"
