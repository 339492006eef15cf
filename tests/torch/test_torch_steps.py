"""Steps of scripts of PyTorch's, as they are noted for the report."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

from hpcdist.base.trace.critical_path import chosen_step  # noqa: E402
from hpcdist.base.trace.events import EventKind  # noqa: E402
from hpcdist.base.trace.files import RankOfJob, RankRecording  # noqa: E402
from hpcdist.base.trace.recorder import Recorder  # noqa: E402
from hpcdist.base.trace.summary import summarize  # noqa: E402
from hpcdist.launch import job_report  # noqa: E402
from hpcdist.torch import steps as torch_steps  # noqa: E402
from hpcdist.torch.signature import Call  # noqa: E402


@pytest.fixture
def recorder(monkeypatch):
    made = Recorder(1 << 16)
    made.always = True
    monkeypatch.setattr(torch_steps, "recorder", made)
    return made


def optimizer(kind):
    return kind([torch.zeros(2, requires_grad=True)], lr=0.1)


def steps_of(recorder):
    events = recorder.taken().events
    return events[events["kind"] == EventKind.STEP]


def page(found):
    return job_report.page(found, [summarize(rank) for rank in found], [], "train.py", {})


def test_optimizers_that_step_in_turns_make_one_step(recorder):
    log = torch_steps.StepLog()
    first, second = optimizer(torch.optim.SGD), optimizer(torch.optim.Adam)
    for _ in range(3):
        log(first)
        log(second)
    steps = steps_of(recorder)
    assert steps["step"].tolist() == [0, 1, 2]
    assert np.array_equal(steps["begin"][1:], steps["end"][:-1])
    for _ in range(4):  # the first one steps no more
        log(second)
    assert steps_of(recorder)["step"].tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_torch_tells_of_each_step(monkeypatch):
    told = []
    monkeypatch.setattr(torch_steps, "steps", lambda *of: told.append(of[0]))
    torch_steps.observe()
    torch_steps.observe()
    trained = optimizer(torch.optim.SGD)
    trained.step()
    trained.step()
    assert told == [trained, trained]


def test_steps_of_a_compiled_function_are_noted_without_a_word(recorder):
    log, trained = torch_steps.StepLog(), optimizer(torch.optim.SGD)
    compiled = torch.compile(lambda: log(trained), backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            compiled()
    assert steps_of(recorder)["step"].tolist() == [0, 1, 2]


def test_the_report_shows_steps_and_sums(recorder):
    log, trained = torch_steps.StepLog(), optimizer(torch.optim.SGD)
    for _ in range(3):
        log.collective(Call("all_reduce", torch.float32, 25, "SUM"), 1000)
        log(trained)
    found = [RankRecording(RankOfJob(0, "TRAINER", 0, "n", 1), recorder.taken())]
    events = found[0].recording.events
    sums = events[events["kind"] == EventKind.SUM]
    assert sums["value"].tolist() == [100.0] * 3 and sums["step"].tolist() == [0, 1, 2]
    assert chosen_step(found) == 1
    assert "Nothing stands out" in page(found) and "No training step" not in page(found)
    empty = [RankRecording(found[0].of, Recorder(1 << 12).taken())]
    assert "No training step was recorded" in page(empty)
