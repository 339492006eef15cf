"""Settings: types, bounds, one place that reads them, and the page that describes them."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

from hpcdist.base import settings
from hpcdist.base.settings import get_flags, set_flags
from hpcdist.comm.bucket import Fusing
from hpcdist.errors import SettingError
from hpcdist.launch import settings_page

MEMORY, GROUPS = "FLAGS_fuse_parameter_memory_size", "FLAGS_fuse_parameter_groups_size"
ORDER, KEPT = "FLAGS_cpu_deterministic", "FLAGS_eager_delete_tensor_gb"


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in (MEMORY, GROUPS, ORDER, KEPT):
        monkeypatch.setenv(name, "")  # so that it is as before when the test ends
        monkeypatch.delenv(name)


def test_what_is_not_set_is_fluids_default():
    assert get_flags([MEMORY, GROUPS, ORDER, KEPT]) == {
        MEMORY: -1.0,
        GROUPS: 1,
        ORDER: False,
        KEPT: 0,
    }


def test_what_is_set_counts():
    set_flags({MEMORY: 32, GROUPS: 50, ORDER: True, KEPT: 1.5})
    assert get_flags((MEMORY, GROUPS, ORDER)) == {MEMORY: 32.0, GROUPS: 50, ORDER: True}
    assert get_flags(KEPT) == {KEPT: 1.5}
    assert Fusing.from_flags(Fusing()) == Fusing(32.0, 50)
    set_flags({ORDER: 0})
    assert get_flags(ORDER) == {ORDER: False}


def test_what_is_in_the_environment_counts(monkeypatch):
    monkeypatch.setenv(ORDER, "on")
    assert get_flags(ORDER) == {ORDER: True}
    monkeypatch.setenv(GROUPS, "many")
    with pytest.raises(ValueError, match=f"{GROUPS}: expected an integer >= 1, got 'many'"):
        get_flags(GROUPS)
    monkeypatch.setenv(GROUPS, "9" * 5000 + "x")
    with pytest.raises(ValueError, match=r"got '9{79}$"):
        get_flags(GROUPS)


@pytest.mark.parametrize(
    ("flags", "kind", "words"),
    [
        ([MEMORY], TypeError, "expected a dict"),
        ({KEPT: 2.0, "FLAGS_check_nothing": True}, ValueError, "no flag 'FLAGS_check_nothing'"),
        ({KEPT: 2.0, MEMORY: "32"}, TypeError, "expected float, got '32'"),
        ({GROUPS: True}, TypeError, "expected int, got True"),
        ({GROUPS: 1.5}, TypeError, "expected int, got 1.5"),
        ({ORDER: "1"}, TypeError, "expected bool, got '1'"),
        ({GROUPS: 0}, ValueError, "expected an integer >= 1, got '0'"),
        ({MEMORY: float("nan")}, ValueError, "expected a number, got 'nan'"),
    ],
)
def test_what_does_not_fit_changes_nothing(flags, kind, words):
    with pytest.raises(kind, match=words):
        set_flags(flags)
    assert get_flags(KEPT) == {KEPT: 0.0}


@pytest.mark.parametrize(("names", "kind"), [(3, TypeError), ("FLAGS_unknown", ValueError)])
def test_what_cannot_be_asked(names, kind):
    with pytest.raises(kind):
        get_flags(names)


# -- all of them -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("FLAGS_rpc_deadline", "3min", r"FLAGS_rpc_deadline \(ms\): expected an integer >= 1"),
        ("FLAGS_rpc_deadline", "0", "got '0'"),
        ("CPU_NUM", "two", "CPU_NUM: expected an integer >= 1, got 'two'"),
        ("FLAGS_worker_update_interval_secs", "-1", "expected a number > 0, got '-1'"),
        ("FLAGS_cpu_deterministic", "maybe", "expected true or false .*, got 'maybe'"),
        ("FLAGS_selected_gpus", "a,b", "expected numbers separated by commas"),
        ("HPCDIST_ON_FAILURE", "hope", "expected end or continue, got 'hope'"),
        ("HPCDIST_ALLREDUCE", "gloo", "expected one of nccl, mpi, mpi-cuda-aware, got 'gloo'"),
    ],
)
def test_a_wrong_value_is_one_clear_error(name, text, words):
    with pytest.raises(SettingError, match=words):
        settings.check({name: text})
    with pytest.raises(SettingError, match=words):
        settings.ALL[name].read({name: text})
    settings.check({name: ""})


def test_every_default_is_a_value():
    for setting in settings.ALL.values():
        value = setting.read({})
        if value not in (None, "", ()):
            assert setting.read({setting.name: setting.text(value)}) == value


def test_a_default_may_be_another_settings_value():
    assert settings.COMMUNICATOR_QUEUE.read({}) == 1
    assert settings.COMMUNICATOR_QUEUE.read({"CPU_NUM": "4"}) == 4
    assert settings.TRAINERS_NUM.read({"PADDLE_TRAINERS": "3"}) == 3


def test_flags_know_all_of_fluids_names():
    known = {name: settings.flag(name).read() for name in settings.FLAGS}
    assert known["FLAGS_rpc_deadline"] == settings.RPC_DEADLINE.read()
    assert known["FLAGS_communicator_send_queue_size"] == settings.COMMUNICATOR_QUEUE.read()


def test_misspelt_names_are_told_with_what_was_meant():
    (warning,) = settings.misspelt({"HPCDIST_PSERVER": "2", "HOME": "/root"})
    assert warning.endswith("variable HPCDIST_PSERVER; did you mean 'HPCDIST_PSERVERS'?")
    (warning,) = settings.misspelt({"FLAGS_rpc_deadine": "1", "FLAGS_benchmark": "1"})
    assert warning.endswith("FLAGS_rpc_deadine; did you mean 'FLAGS_rpc_deadline'?")
    (warning,) = settings.misspelt({"HPCDIST_ABOUT_NOTHING_WHATSOEVER": "1"})
    assert "python -m hpcdist settings" in warning
    assert settings.misspelt(dict.fromkeys(settings.ALL, "1")) == []


ROOT = Path(settings.__file__).parents[1]
# What mpirun and srun say; what the launcher sets for a script, and hands to NCCL.
OF_LAUNCHER = ("launch/main.py", "launch/rank_steps.py")
EXEMPT = (
    *OF_LAUNCHER,
    "base/setting.py",
    "base/settings.py",
    "comm/process_manager.py",
    "fluid/fleet/done_files.py",  # a Paddle cluster's JOB_ID and INSTANCE_ID, for its lines
    "launch/fleetrun.py",  # hands all of it to mpirun
    "launch/notebook.py",  # the same
)


def test_no_other_module_reads_the_environment():
    for file in sorted(ROOT.rglob("*.py")):
        source = file.read_text()
        if str(file.relative_to(ROOT)) not in EXEMPT and re.search("environ|getenv", source):
            for node in ast.walk(ast.parse(source)):
                # os.environ, or the import of it; an argument of that name is somebody else's.
                if isinstance(node, (ast.Attribute, ast.alias)):
                    name = node.attr if isinstance(node, ast.Attribute) else node.name
                    assert name not in ("environ", "getenv"), f"{file}:{node.lineno}"


def test_the_launcher_reads_no_setting_past_this_module():
    nodes = [n for file in OF_LAUNCHER for n in ast.walk(ast.parse((ROOT / file).read_text()))]
    calls = [
        node.func.attr
        for node in nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("os.environ.")
    ]
    assert set(calls) == {"setdefault", "update"}
    reads = [node for node in nodes if isinstance(node, (ast.Subscript, ast.Compare))]
    assert not [node for node in reads if "os.environ" in ast.unparse(node)]


def test_the_page_is_what_the_module_says():
    assert (ROOT.parent / "docs" / "settings.md").read_text() == settings_page.markdown(), (
        "python -m hpcdist settings > docs/settings.md"
    )


def test_the_role_that_another_job_has_left_is_forgotten(monkeypatch):
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    monkeypatch.setenv("HPCDIST_SEED", "5")
    settings.forget_role()
    assert settings.role_variables() == {} and os.environ["HPCDIST_SEED"] == "5"
