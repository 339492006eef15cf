"""fluid.profiler: what Fluid 1.8.5 prints and refuses, over the recorder."""

from __future__ import annotations

import json

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import profiler
from hpcdist.base.trace.recorder import recorder
from hpcdist.errors import MissingNameError
from tests.support.job import alone

HEAD = ["Event", "Calls", "Total", "Min.", "Max.", "Ave.", "Ratio."]


@pytest.fixture
def step():
    """A function that trains one step; the recorder as at the start of a process."""
    recorder.begin(2**20)
    with alone(), fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [None, 4], "float32")
        loss = fluid.layers.mean(fluid.layers.fc(x, 3))
        fluid.optimizer.SGD(0.1).minimize(loss)
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        rows = np.ones((2, 4), "float32")
        yield lambda: exe.run(feed={"x": rows}, fetch_list=[loss])
    recorder.begin(0)


def printed(capsys):
    """Return the rows of the table, by operator, and its lines."""
    lines = capsys.readouterr().out.splitlines()
    (head,) = [i for i, line in enumerate(lines) if line.split() == HEAD]
    rows = [line.split() for line in lines[head + 1 :] if line]
    return {row[0].removeprefix("thread0::"): row[1:] for row in rows}, lines


def test_the_table_has_fluids_operators_and_columns(step, capsys, tmp_path):
    step()
    with profiler.profiler("CPU", "total", str(tmp_path / "profile")):
        for _ in range(5):
            step()
    rows, lines = printed(capsys)
    assert {name: int(row[0]) for name, row in rows.items()} == {
        "feed": 5,
        "mul": 5,
        "elementwise_add": 5,
        "mean": 5,
        "fill_constant": 5,
        "mean_grad": 5,
        "elementwise_add_grad": 5,
        "mul_grad": 5,
        "sgd": 10,
        "fetch": 5,
    }
    assert "Place: CPU" in lines
    assert "Sorted by total time in descending order in the same thread" in lines
    for _, total, least, most, average, _ in rows.values():
        assert 0 < float(least) <= float(average) <= float(most) <= float(total)
    assert sum(float(row[5]) for row in rows.values()) == pytest.approx(1, abs=1e-3)
    (ratio,) = [line.split()[-1] for line in lines if "Computation time" in line]
    assert ratio.endswith("%") and 0 < float(ratio[:-1]) <= 100
    (total,) = [float(line.split()[2]) for line in lines if line.startswith("Total time")]
    assert total >= sum(float(row[1]) for row in rows.values()) * 0.999
    events = json.loads((tmp_path / "profile").read_text())["traceEvents"]
    assert sum(e["ph"] == "X" and e["name"] == "sgd" for e in events) == 10


def test_with_gpu_the_place_is_fluids_word(step, capsys, tmp_path):
    with profiler.profiler("GPU", profile_path=str(tmp_path / "profile")):
        step()
    assert "Place: CUDA" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("role", "own", "name"),
    [("TRAINER", "h:1", "rank 3 (trainer 2 on "), ("PSERVER", "h:5", "rank 3 (server 1 on ")],
)
def test_the_trace_of_a_rank_names_its_role(step, tmp_path, monkeypatch, role, own, name):
    variables = {
        "HPCDIST_RANK": "3",
        "PADDLE_TRAINING_ROLE": role,
        "PADDLE_TRAINER_ID": "2",
        "PADDLE_PSERVERS_IP_PORT_LIST": "h:4,h:5",
        "PADDLE_CURRENT_ENDPOINT": own,
    }
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with profiler.profiler("CPU", profile_path=str(tmp_path / "profile")):
        step()
    events = json.loads((tmp_path / "profile.3").read_text())["traceEvents"]
    (named,) = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert named.startswith(name)


@pytest.mark.parametrize(
    ("key", "column"), [("calls", 0), ("total", 1), ("min", 2), ("max", 3), ("ave", 4)]
)
def test_the_table_is_sorted(step, capsys, tmp_path, key, column):
    with profiler.profiler("All", key, str(tmp_path / "profile")):
        step()
    rows, _ = printed(capsys)
    values = [float(row[column]) for row in rows.values()]
    assert values == sorted(values, reverse=True)


def test_without_a_key_operators_stand_as_they_first_ended(step, capsys, tmp_path):
    profiler.start_profiler("CPU")
    step()
    step()
    profiler.stop_profiler(profile_path=str(tmp_path / "profile"))
    rows, _ = printed(capsys)
    names = list(rows)
    assert (names[:2], names[-1]) == (["feed", "mul"], "fetch")


def test_reset_forgets_what_was_before(step, capsys, tmp_path):
    with profiler.profiler("CPU", profile_path=str(tmp_path / "profile")):
        step()
        step()
        profiler.reset_profiler()
        step()
    rows, _ = printed(capsys)
    assert rows["sgd"][0] == "2"


def test_a_recorder_that_is_turned_off_records_a_profile_and_nothing_else(step, capsys, tmp_path):
    recorder.begin(0)
    with profiler.profiler("CPU", profile_path=str(tmp_path / "profile")):
        step()
    assert printed(capsys)[0]["sgd"][0] == "2"
    assert not recorder.on


def test_afterwards_the_recorder_is_as_it_was(step, tmp_path):
    with profiler.profiler("CPU", profile_path=str(tmp_path / "profile")):
        assert recorder.always
        step()
    assert not recorder.always


def test_what_fluid_refuses_and_what_it_lets_pass(step, capsys, tmp_path):
    profiler.stop_profiler("nonsense")  # nothing runs: nothing is looked at
    profiler.reset_profiler()
    with pytest.raises(ValueError, match="state must be one of"):
        profiler.start_profiler("TPU")
    with pytest.raises(ValueError, match="tracer_option must be one of"):
        profiler.start_profiler("CPU", "None")
    profiler.start_profiler("CPU")
    profiler.start_profiler("nonsense")  # runs already
    with pytest.raises(ValueError, match="sorted_key must be one of"):
        profiler.stop_profiler("nonsense")
    profiler.stop_profiler(profile_path=str(tmp_path / "profile"))
    assert printed(capsys)[0] == {}


def test_cuda_profiler_is_refused_by_name():
    with pytest.raises(MissingNameError, match=r"cuda_profiler.*nsys"):
        _ = profiler.cuda_profiler
